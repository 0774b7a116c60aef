"""The hyperparameter schedule that PBT found, read from a run and played back.

Whether a tuned agent owes its return to its schedule or to the weights that it
inherited is seen by training another one from scratch with the schedule.
"""

import dataclasses

from qdrl_haiku import controllers, learners
from qdrl_haiku.controllers import lineage
from qdrl_haiku.programs.artifacts.agents import read_best_agent_record
from qdrl_haiku.programs.storage.directory import RunDirectory


@dataclasses.dataclass(frozen=True)
class Schedule:
  """Holds the schedule of hyperparameters that an agent, the winner, had."""

  run: str  # The directory of the run.
  member: int  # Which member the winner was when it was evaluated.
  generation: int  # In which that was.
  # What it reached then; None if that wasn't finite.
  episode_return: float | None
  perturbation_interval: int  # Environment steps of a generation.
  # By name, for each generation since the agents began, or began anew because
  # all had diverged.
  hyperparams: list[dict[str, float]]

  @property
  def num_generations(self) -> int:
    """For how many generations the winner had been trained."""
    return len(self.hyperparams)

  @property
  def num_steps(self) -> int:
    """Environment steps that the winner had been trained for."""
    return self.num_generations * self.perturbation_interval


def read_schedule(logdir: str, member: int | None = None) -> Schedule:
  """Reads with which hyperparameters an agent and its ancestors were trained.

  Args:
    logdir: directory of a run with a controller.
    member: which one, as it was evaluated in the last generation; by default
      the best agent that the run ever evaluated.

  Raises:
    ValueError: if there is no such run or member, if the agent descends from an
      elite or another run's agent, or if files are damaged.
  """
  directory = RunDirectory(logdir)
  settings = directory.settings()
  rows = directory.rows("pbt_lineage.jsonl")
  trained = {
    (row["generation"], row["member"]): row
    for row in directory.rows("pbt_members.jsonl")}
  if not rows:
    raise ValueError(
      f"{logdir} has no lineage, since nothing tuned its agents; name a run "
      "that has a controller, such as one of train_pbt.py.")
  if not trained:
    raise ValueError(f"{logdir} has finished no generation; train it first.")
  if settings.get("warm_start"):
    raise ValueError(
      f"the agents of {logdir} began as those of {settings['warm_start']}, so "
      "its schedule isn't one from scratch; name a run without warm_start.")
  last, _ = max(trained)
  num_members = sum(generation == last for generation, _ in trained)
  if member is None:
    record = read_best_agent_record(logdir)
    generation, member = record["generation"], record["member"]
    fault = "the best agent is a variation of elites, which has no schedule"
  else:
    generation = last
    fault = f"member={member}, but there are {num_members} agents, from 0 on"
  try:
    if (generation, member) not in trained:
      raise ValueError(f"{fault}.")
    schedule = lineage.schedule_from_lineage(rows, member, generation)
  except ValueError as error:
    raise ValueError(
      f"{logdir}: {error} Name another member, or another run.") from error
  # An agent that begins anew after all have diverged inherits nothing.
  begins = max((
    row["generation"] for row in directory.rows("metrics.jsonl")
    if row["generation"] < generation
    and row.get("pbt/num_nonfinite") == num_members), default=0)
  evaluated = trained[generation, member]
  return Schedule(
    run=logdir, member=member, generation=generation,
    episode_return=evaluated.get("return"),
    perturbation_interval=evaluated["step"] // generation,
    hyperparams=[row["hyperparams"] for row in schedule[begins:]])


def play_back(
  schedule: Schedule, learner: learners.Learner
) -> controllers.Controller:
  """Makes a controller that gives all members the schedule's hyperparameters.

  Args:
    schedule: of `read_schedule`; after its end the last hyperparameters stay.
    learner: whose hyperparameters they are, or the schedule is refused.
  """
  return controllers.schedule(
    lineage.stack_lineage_hyperparams(schedule.hyperparams, learner.hyperparams)
  )
