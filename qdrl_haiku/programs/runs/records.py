"""The record, the row of metrics and the rows of members of a generation."""

from collections.abc import Mapping, Sequence

import jax
import numpy as np

from qdrl_haiku import actors, environments, trees, types
from qdrl_haiku.controllers import lineage
from qdrl_haiku.programs.runs import divergence
from qdrl_haiku.programs.storage.directory import RunDirectory
from qdrl_haiku.programs.storage.strict_json import Record
from qdrl_haiku.training.setup import Setup
from qdrl_haiku.training.state import GenerationReport, State


def initial_record() -> Record:
  """Returns the record before the first generation."""
  counts = ("generation", "step", "initial_env_steps", "total_env_steps")
  return dict.fromkeys((*counts, "diverged"), 0) | {
    "walltime": 0.0, "returns": None, "best": None}


def first_record(
  record: Record, seed: int, state: State, known: Record
) -> tuple[Record, Record]:
  """Returns record and row of a first repertoire.

  They are the `record` before it and the `known` metrics, with the `seed` and
  the environment steps that the `state` says.
  """
  steps = int(state.initial_steps)
  record = record | {"initial_env_steps": steps, "total_env_steps": steps}
  kept = ("generation", "step", "walltime", "total_env_steps")
  return record, known | {name: record[name] for name in kept} | {"seed": seed}


def update_record(
  record: Record, setup: Setup, report: GenerationReport, walltime: float
) -> Record:
  """Returns the `record` after one more generation of a `setup`.

  `report` is the generation's, on the host, and `walltime` the run's so far, in
  seconds.
  """
  returns = report.scores["episode_return"]
  generation = int(report.generation)
  total_env_steps = record["total_env_steps"] + _env_steps(setup, report)
  step = generation * setup.steps_per_generation
  if not setup.trains_members:
    # Real steps, since episodes may end early. Each offspring takes at least
    # one per generation, so the quotient grows; only at first, with too few
    # elites to resample, it may not: hence the maximum.
    num_agents = report.num_updates.shape[0] + setup.sizes.again
    steps = total_env_steps - record["initial_env_steps"]
    step = max(steps // num_agents, record["step"] + 1)
  best = record["best"]
  if np.isfinite(report.best.fitness) and (
    best is None or report.best.fitness > best["fitness"]
  ):
    # As of a population of one.
    hyperparams = jax.tree.map(lambda x: x[None], report.best.hyperparams)
    best = {
      "step": step, "generation": generation,
      "member": int(report.best.member),
      "fitness": float(report.best.fitness),
      "return": float(report.best.episode_return),
      "hyperparams": lineage.lineage_hyperparams(hyperparams)[0]}
  num_diverged = record.get("diverged", 0)
  if setup.trains_members:
    num_diverged = divergence.num_diverged_in_a_row(num_diverged, report)
  return record | {
    "generation": generation, "step": step, "walltime": walltime,
    "total_env_steps": total_env_steps, "best": best, "diverged": num_diverged,
    "returns": [x if np.isfinite(x) else None for x in returns.tolist()]}


def _env_steps(setup: Setup, report: GenerationReport) -> int:
  """Counts the environment steps of a generation, however many there are."""
  evaluated = np.sum(report.evaluation_steps, dtype=np.int64)
  return _collected_steps(setup) + int(evaluated)


def record_row(
  seeds: Sequence[int], report: GenerationReport, record: Record
) -> Record:
  """Returns the row of metrics of one generation.

  `seeds` are one, or those of the members without a controller; `report` is the
  generation's, on the host, and `record` the one after it.
  """
  averaged = {
    "eval/episode_return": report.evaluation.returns,
    "eval/episode_length": report.evaluation.lengths} | _other_scores(report)
  for name, values in sorted(report.metrics.items()):
    averaged[f"training/{name}"] = values
  row: Record = {"generation": int(report.generation)}
  row |= {name: float(np.mean(x)) for name, x in averaged.items()}
  row |= {"step": record["step"], "walltime": record["walltime"]}
  row |= {"seed": seeds[0], "total_env_steps": record["total_env_steps"]}
  row |= record_numbers(report.repertoire_metrics)
  row |= record_numbers(report.emitter_metrics, "emitter/")
  if report.decision is not None:
    row |= _pbt_row(report)
    row |= record_numbers(report.decision.metrics, "controller/")
  elif not report.repertoire_metrics:
    row |= _seeds_row(report, seeds)
  return row


def _pbt_row(report: GenerationReport) -> Record:
  """Returns what a controller adds to the row."""
  assert report.decision is not None
  row: Record = {}
  scores: Record = {"return": report.scores["episode_return"]}
  scores |= {
    name.split("/")[-1]: x for name, x in _other_scores(report).items()}
  for name, values in scores.items():
    values = values[report.finite]
    for kind, of in (("best", np.max), ("mean", np.mean), ("min", np.min)):
      row[f"pbt/{kind}_{name}"] = float(of(values)) if values.size else np.nan
  parents = report.decision.parents
  # Where none is finite, all begin anew in their own places.
  replaced = (parents != np.arange(len(parents))) | ~report.finite.any()
  replaced |= np.asarray(report.sampled_cells) >= 0
  row["pbt/num_replaced"] = int(np.sum(replaced))
  row["pbt/num_nonfinite"] = int(np.sum(~report.finite))
  for name, x in trees.tree_leaves_by_name(report.hyperparams).items():
    values = np.asarray(x, float)
    for kind, of in (("mean", np.mean), ("min", np.min), ("max", np.max)):
      row[f"pbt/hyperparams/{name}/{kind}"] = float(of(values))
  return row


def record_numbers(
  values: Mapping[str, types.Array], prefix: str = ""
) -> Record:
  """Returns scalars by name as Python's numbers."""
  return {
    f"{prefix}{name}": np.asarray(value).item()
    for name, value in values.items()}


def _seeds_row(report: GenerationReport, seeds: Sequence[int]) -> Record:
  """Returns what several seeds side by side add to the row."""
  from scipy import stats  # Here, since importing it takes long.

  returns = report.scores["episode_return"]
  scores = {"eval/episode_return": returns} | _other_scores(report)
  row: Record = {
    f"{name}/seed_{seed}": float(value)
    for name, values in scores.items()
    for seed, value in zip(seeds, values, strict=True)}
  row["eval/episode_return_iqm"] = float(stats.trim_mean(returns, 0.25))
  return row


def _other_scores(report: GenerationReport) -> dict[str, types.Array]:
  """Returns all scores but the return, which has names of its own."""
  scores = dict(sorted(report.scores.items()))
  del scores["episode_return"]
  return scores


def record_rates(
  setup: Setup, report: GenerationReport, seconds: float
) -> Record:
  """Returns what was done per second, summed over the population.

  `report` is that of a generation of a `setup`, which took so many `seconds`.
  """
  steps = _collected_steps(setup) or _env_steps(setup, report)
  return {
    "training/env_steps_per_second": steps / seconds,
    "training/updates_per_second": int(report.num_updates.sum()) / seconds}


def _collected_steps(setup: Setup) -> int:
  """Counts the steps that members collect in a generation; 0 without any."""
  config, has_any = setup.config, setup.trains_members
  return config.population_size * config.perturbation_interval * has_any


def write_records(
  directory: RunDirectory, setup: Setup, report: GenerationReport, step: int
) -> None:
  """Writes the members' returns and hyperparameters, and their lineage.

  They go to files in a run's `directory`, as the `report` of a generation of
  its `setup` says, which ended at `step`, environment steps per agent.
  """
  now = (int(report.generation), step)
  config = setup.config
  if report.decision is not None:
    assert setup.controller is not None
    is_return = (config.fitness, config.fitness_window) == ("episode_return", 1)
    members = lineage.lineage_member_rows(
      *now, report.scores["episode_return"], report.hyperparams,
      None if is_return else report.fitness)
    directory.append("pbt_members.jsonl", members)
    rows = lineage.lineage_rows(
      *now, report.decision, report.fitness, report.hyperparams,
      setup.controller.operators, report.sampled_cells, report.next_hyperparams)
    directory.append("pbt_lineage.jsonl", rows)
  if "skill" in (report.evaluation.trajectory or {}):
    write_skill_records(
      directory, *now, report.evaluation, setup.eval_env.descriptor)


def write_skill_records(
  directory: RunDirectory, generation: int, step: int,
  evaluation: actors.Evaluation, descriptor: environments.Descriptor | None,
) -> None:
  """Writes how each skill did, and where its episodes went.

  `skills.jsonl` gets a row for each member and skill, means over its episodes;
  `skills.npz` holds the latest episodes: `returns`, `lengths` [P, N], the
  trajectory of `skill_evaluation`, and the descriptor's `names`, `lower` and
  `upper` [D].

  Args:
    directory: the run's.
    generation: counted from 1.
    step: environment steps per agent.
    evaluation: with what `skill_evaluation` recorded, on the host.
    descriptor: the environment's, or None.
  """
  trajectory = evaluation.trajectory
  scores = {
    "return": evaluation.returns,
    "diversity_return": trajectory["diversity_return"]}
  rows = []
  for member, skills in enumerate(trajectory["skill"]):
    for skill in np.unique(skills, axis=0):
      episodes = np.all(skills == skill, axis=1)
      rows.append({
        "generation": generation, "step": step, "member": member,
        "skill": skill.tolist(), **{
          name: float(np.mean(x[member, episodes]))
          for name, x in scores.items()}})
  directory.append("skills.jsonl", rows)
  axes = {} if descriptor is None else {
    name: np.array(getattr(descriptor, name))
    for name in ("names", "lower", "upper")}
  returns = {"returns": evaluation.returns, "lengths": evaluation.lengths}
  directory.write_arrays("skills.npz", trajectory | returns | axes)


def summarize_record(row: Record) -> str:
  """Returns what the progress line says of a generation."""
  if "qd/qd_score" in row:
    return (
      f"QD score {row['qd/qd_score']:.0f} coverage {row['qd/coverage']:.1f} % "
      f"best {row['qd/max_fitness']:.1f}")
  mean = row.get("pbt/mean_return", row["eval/episode_return"])
  if "pbt/best_return" in row:
    return f"return best {row['pbt/best_return']:.1f} mean {mean:.1f}"
  prefix, text = "eval/episode_return/seed_", f"return {mean:.1f}"
  seeds = [value for name, value in row.items() if name.startswith(prefix)]
  if len(seeds) > 1:
    text = f"return best {max(seeds):.1f} mean {mean:.1f}"
  for name, value in row.items():
    if name.endswith("/mutual_information_lower_bound"):
      text += f" nats {value:.2f}"
  cells = row.get("eval/coverage")
  return text if cells is None else f"{text} cells {cells:.0f}"
