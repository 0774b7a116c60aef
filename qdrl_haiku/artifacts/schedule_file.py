"""The hyperparameter schedule that PBT found, read from a run and played back.

Whether a tuned agent owes its return to its schedule or to the weights that it
inherited is seen by training another one from scratch with the schedule.
"""

import dataclasses
from typing import Any

from qdrl_haiku import controllers, learners
from qdrl_haiku.artifacts.agents import read_best_record
from qdrl_haiku.controllers import lineage
from qdrl_haiku.storage import row_files
from qdrl_haiku.storage.directory import RunDirectory


@dataclasses.dataclass(frozen=True)
class Schedule:
  """Holds the schedule of hyperparameters that an agent, the winner, had.

  Attributes:
    run: the directory of the run.
    member: which member the winner was when it was evaluated.
    generation: of the run, in which it was.
    episode_return: what it reached then; None if that wasn't finite.
    perturbation_interval: environment steps of a generation.
    num_generations: for how many it had been trained; fewer than `generation`
      if all members had diverged, and begun anew, before.
    changes: dicts of `generation`, counted from 1, the winner's first, and of
      the `hyperparams` by name that it was trained with from then on.

  Raises:
    ValueError: if it's not of this form, as in a damaged file.
  """

  run: str
  member: int
  generation: int
  episode_return: float | None
  perturbation_interval: int
  num_generations: int
  changes: list[dict[str, Any]]

  def __post_init__(self) -> None:
    numbers = (
      self.member,
      self.generation,
      self.perturbation_interval,
      self.num_generations,
    )
    is_whole = all(isinstance(x, int) for x in numbers) and all(
      isinstance(change.get("generation"), int) and "hyperparams" in change
      for change in self.changes
    )
    if not is_whole or not self.changes:
      raise ValueError(f"the schedule of {self.run} is damaged.")

  @property
  def num_steps(self) -> int:
    """Environment steps that the winner had been trained for."""
    return self.num_generations * self.perturbation_interval


def read_schedule(logdir: str, member: int | None = None) -> Schedule:
  """Reads with which hyperparameters an agent of a run was trained.

  Args:
    logdir: directory of a run with a controller.
    member: which one, as it was evaluated in the last generation; by default
      the best agent that the run ever evaluated.

  Returns:
    The schedule, of all its ancestors.

  Raises:
    ValueError: if there is no such run or member, if its ancestry doesn't lead
      back to an agent that knew nothing, or if its files are damaged.
  """
  directory = RunDirectory(logdir)
  settings = directory.settings()
  rows, member_rows = (
    directory.rows(name, row_files.COLUMNS[name])
    for name in ("pbt_lineage.jsonl", "pbt_members.jsonl")
  )
  trained = {(row["generation"], row["member"]): row for row in member_rows}
  if not rows:
    raise ValueError(
      f"{logdir} has no lineage, since nothing tuned its agents; name a run "
      "that has a controller, such as one of train_pbt.py."
    )
  if not trained:
    raise ValueError(f"{logdir} has finished no generation; train it first.")
  if settings.get("warm_start"):
    raise ValueError(
      f"the agents of {logdir} began as those of {settings['warm_start']}, so "
      "its schedule isn't one from scratch; name a run without warm_start."
    )
  last, _ = max(trained)
  members = [m for generation, m in trained if generation == last]
  if member is None:
    record = read_best_record(logdir)
    winner = record["generation"], record["member"]
    if winner not in trained:
      raise ValueError(
        f"the best agent of {logdir} is a variation of elites, which has no "
        f"schedule. {_advice(rows, members, last)}"
      )
  else:
    winner = last, member
    if winner not in trained:
      raise ValueError(
        f"member={member}, but there are {len(members)} agents in {logdir}; "
        f"give one from 0 to {len(members) - 1}."
      )
  try:
    schedule = lineage.schedule(rows, winner[1], winner[0])
  except ValueError as error:
    raise ValueError(
      f"{logdir}: {error} {_advice(rows, members, last)}"
    ) from error
  for row in schedule:
    found = trained.get((row["generation"], row["member"]), {})
    if found.get("hyperparams") != row["hyperparams"]:
      raise ValueError(
        f"pbt_lineage.jsonl in {logdir} is damaged: in pbt_members.jsonl, "
        f"member {row['member']} has other hyperparameters in generation "
        f"{row['generation']}; name a run whose files agree."
      )
  # Who begins anew after all have diverged owes nothing to what was before.
  begins = max(
    (
      row["generation"]
      for row in directory.rows("metrics.jsonl")
      if row["generation"] < winner[0]
      and row.get("pbt/num_nonfinite") == len(members)
    ),
    default=0,
  )
  step = trained[winner]["step"]
  schedule = schedule[begins:]
  return Schedule(
    run=logdir,
    member=winner[1],
    generation=winner[0],
    episode_return=trained[winner].get("return"),
    perturbation_interval=step // winner[0],
    num_generations=len(schedule),
    changes=[
      {"generation": i + 1, "hyperparams": row["hyperparams"]}
      for i, row in enumerate(schedule)
      if i == 0 or row["hyperparams"] != schedule[i - 1]["hyperparams"]
    ],
  )


def play_back(
  schedule: Schedule, learner: learners.Learner
) -> controllers.Controller:
  """Returns a controller by which all members follow a schedule.

  Args:
    schedule: of `read_schedule`; after its end the last hyperparameters stay.
    learner: whose hyperparameters they are.

  Returns:
    The controller.

  Raises:
    ValueError: if it's the schedule of other hyperparameters.
  """
  named: list[dict[str, float]] = []
  for change in schedule.changes:
    # What was before goes on until this generation.
    named += named[-1:] * (change["generation"] - 1 - len(named))
    named.append(change["hyperparams"])
  return controllers.schedule(
    lineage.stacked_hyperparams(named, learner.hyperparams)
  )


def _advice(
  rows: list[dict[str, Any]], members: list[int], generation: int
) -> str:
  """Returns who else has a schedule."""
  having = []
  for member in members:
    try:
      lineage.schedule(rows, member, generation)
    except ValueError:
      continue
    having.append(str(member))
  if not having:
    return "No member of its last generation has one; name another run."
  return f"Of the last generation, these members have one: {', '.join(having)}."
