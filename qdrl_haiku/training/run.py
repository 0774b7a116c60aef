"""A whole run: compile, train generation by generation, record, resume."""

import dataclasses
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from qdrl_haiku import controllers, types
from qdrl_haiku.controllers import lineage
from qdrl_haiku.training import metrics
from qdrl_haiku.training.agents import read_agents, warm_start
from qdrl_haiku.training.checkpoints import Checkpoints
from qdrl_haiku.training.config import nearest_multiples, schedule
from qdrl_haiku.training.generation import GenerationReport
from qdrl_haiku.training.logs import MetricsWriter, RunDirectory
from qdrl_haiku.training.plots import plot_run
from qdrl_haiku.training.population import Members, Population, Setup
from qdrl_haiku.training.programs import compile_programs
from qdrl_haiku.training.progress import Progress
from qdrl_haiku.training.sharding import population_mesh

_ROWS = ("metrics.jsonl", "pbt_lineage.jsonl", "pbt_members.jsonl")


@dataclasses.dataclass(frozen=True)
class RunConfig:
  """What a run is, beside what it trains.

  Attributes:
    logdir: the directory that it leaves behind.
    num_timesteps: environment steps per agent in all, a multiple of the
      interval of a generation.
    seeds: one seed, from which the run's key is made; or one per member, which
      makes each member a run of its own.
    resume: whether to go on from the latest checkpoint in `logdir`.
    warm_start: directory of another run whose agents this one begins with, or
      None. It stays the same when the run is resumed, and isn't read then.
    use_tensorboard: whether to write TensorBoard events.
    checkpoint_interval: generations from one checkpoint to the next, >= 1.
    max_checkpoints: how many checkpoints are kept, >= 1.

  Raises:
    ValueError: if a setting is out of its range.
  """

  logdir: str
  num_timesteps: int
  seeds: tuple[int, ...] = (0,)
  resume: bool = False
  warm_start: str | None = None
  use_tensorboard: bool = True
  checkpoint_interval: int = 1
  max_checkpoints: int = 2

  def __post_init__(self) -> None:
    for name in ("num_timesteps", "checkpoint_interval", "max_checkpoints"):
      if getattr(self, name) < 1:
        raise ValueError(
          f"{name} must be at least 1, got {getattr(self, name)}."
        )
    for seed in self.seeds:
      if not 0 <= seed < 2**32:
        raise ValueError(
          f"seed must be at least 0 and below 2**32, got {seed}."
        )


def run(
  setup: Setup, config: RunConfig, settings: dict[str, Any]
) -> dict[str, Any]:
  """Trains a population from its start, or from where it stopped, to the end.

  Args:
    setup: what the population is composed of; without a mesh it gets one of
      all devices that share it evenly.
    config: what the run is.
    settings: all that the user set, for `config.json`.

  Returns:
    The last row of metrics.

  Raises:
    ValueError: if the settings don't fit each other or what is in `logdir`.
  """
  # Everything is checked before anything is written.
  _check(setup, config)
  interval = setup.config.perturbation_interval
  directory = RunDirectory(config.logdir)
  if config.resume:
    directory.go_on(settings)
  else:
    directory.begin(settings)
  start = time.monotonic()
  mesh = setup.mesh or population_mesh(setup.config.population_size)
  setup = setup._replace(mesh=mesh)
  run_key = _run_key(config, mesh)
  programs = compile_programs(setup, mesh, run_key)
  checkpoints = Checkpoints(
    directory.path / "checkpoints", config.max_checkpoints
  )
  best = Checkpoints(directory.path / "best", 1)
  population, record = _begin(
    setup, config, directory, checkpoints, programs.init(run_key)
  )
  # So that the time before an interruption counts too.
  start -= record["walltime"]
  writer = MetricsWriter(directory, config.use_tensorboard)
  progress = Progress(config.num_timesteps // interval, record["generation"])

  # That of a run which is at its end already.
  row: dict[str, Any] = (directory.rows("metrics.jsonl") or [{}])[-1]
  for generation in range(
    record["generation"] + 1, config.num_timesteps // interval + 1
  ):
    generation_start = time.monotonic()
    population, report = programs.train_generation(population, run_key)
    best_state = report.best_state
    report = jax.device_get(report._replace(best_state=None))
    rates = _rates(report, interval, time.monotonic() - generation_start)
    record = _updated(
      record, report, interval, walltime=time.monotonic() - start
    )
    row = _row(setup, config, report, record) | rates
    row["training/compile_seconds"] = programs.compile_seconds
    writer.write(row)
    if report.decision is not None:
      _write_members(directory, report, report.decision, row["step"])
      if not report.finite.any():
        progress.say(
          "All members have diverged; they begin anew with other "
          "hyperparameters."
        )
        population = programs.restart(population, run_key)
    # A resumed run may come by a best one that it had written already.
    if record["best"] and record["best"]["step"] == row["step"]:
      best.save(row["step"], {"learner": best_state}, record["best"])
    if row["step"] == config.num_timesteps or (
      generation % config.checkpoint_interval == 0
    ):
      checkpoints.save(row["step"], _to_trees(population), record)
    progress.show(row, _returns_text(row))
  for file in (progress, writer, checkpoints, best):
    file.close()
  plot_run(directory)
  return row


def _check(setup: Setup, config: RunConfig) -> None:
  """Refuses what doesn't fit, as `run` documents."""
  schedule(setup.config, setup.learner.batches_per_update)
  interval = setup.config.perturbation_interval
  if config.num_timesteps % interval:
    raise ValueError(
      f"num_timesteps {config.num_timesteps} must be a multiple of the "
      f"{interval} steps of a generation; the nearest: "
      f"{nearest_multiples(config.num_timesteps, interval)}."
    )
  controller, size = setup.controller, setup.config.population_size
  if controller is not None:
    jax.eval_shape(lambda: controller.init(jax.random.key(0), size))
  if config.warm_start is not None and not config.resume:
    read_agents(setup.learner, config.warm_start)


def _run_key(config: RunConfig, mesh: jax.sharding.Mesh) -> types.Key:
  """The run's key, or one per seed, on all devices."""
  keys = jnp.stack([jax.random.key(seed) for seed in config.seeds])
  return jax.device_put(
    keys if len(config.seeds) > 1 else keys[0],
    NamedSharding(mesh, PartitionSpec()),
  )


def _begin(
  setup: Setup,
  config: RunConfig,
  directory: RunDirectory,
  checkpoints: Checkpoints,
  population: Population,
) -> tuple[Population, dict[str, Any]]:
  """The population to go on with, and the record of what has been done."""
  step = checkpoints.latest() if config.resume else None
  if step is not None:
    record = checkpoints.record(step)
    for name in _ROWS:
      directory.forget_after(name, record["generation"])
    trees = checkpoints.restore(step, _to_trees(population))
    return _from_trees(trees), record
  for name in _ROWS:
    directory.forget_after(name, -1)
  if config.warm_start is not None:
    population = warm_start(setup, population, config.warm_start)
  if setup.controller is not None:
    directory.append(
      "pbt_lineage.jsonl", lineage.initial_rows(population.hyperparams)
    )
  record = {
    "generation": 0,
    "walltime": 0.0,
    "total_env_steps": 0,
    "returns": None,
    "best": None,
  }
  return population, record


def _to_trees(population: Population) -> dict[str, Any]:
  """The parts of a population that can be read without the others."""
  rest = population._asdict()
  return rest.pop("members")._asdict() | {"population": rest}


def _from_trees(trees: dict[str, Any]) -> Population:
  """The population of which these are the parts."""
  rest = trees.pop("population")
  return Population(members=Members(**trees), **rest)


def _updated(
  record: dict[str, Any],
  report: GenerationReport,
  interval: int,
  walltime: float,
) -> dict[str, Any]:
  """The record after one more generation."""
  returns = np.mean(report.evaluation.returns, axis=1)
  generation = int(report.generation)
  best = record["best"]
  member = int(report.best)
  if report.finite[member] and (
    best is None or returns[member] > best["return"]
  ):
    best = {
      "step": generation * interval,
      "generation": generation,
      "member": member,
      "return": float(returns[member]),
      "hyperparams": lineage.named_hyperparams(report.hyperparams)[member],
    }
  collected = interval * returns.shape[0]
  evaluated = int(np.sum(report.evaluation.lengths))
  return {
    "generation": generation,
    "walltime": walltime,
    "total_env_steps": record["total_env_steps"] + collected + evaluated,
    "returns": [x if np.isfinite(x) else None for x in returns.tolist()],
    "best": best,
  }


def _row(
  setup: Setup,
  config: RunConfig,
  report: GenerationReport,
  record: dict[str, Any],
) -> dict[str, Any]:
  """The row of metrics of one generation."""
  row = metrics.generation_row(report) | {
    "step": record["generation"] * setup.config.perturbation_interval,
    "walltime": record["walltime"],
    "seed": config.seeds[0],
    "total_env_steps": record["total_env_steps"],
  }
  if setup.controller is not None:
    row |= metrics.pbt_row(report)
  else:
    row |= metrics.seeds_row(report, config.seeds)
  return row


def _rates(
  report: GenerationReport, interval: int, seconds: float
) -> dict[str, Any]:
  """What was done per second, summed over the population."""
  steps = interval * report.num_updates.shape[0]
  return {
    "training/env_steps_per_second": steps / seconds,
    "training/updates_per_second": int(report.num_updates.sum()) / seconds,
  }


def _write_members(
  directory: RunDirectory,
  report: GenerationReport,
  decision: controllers.Decision,
  step: int,
) -> None:
  """Writes who was how good with what, and who took over from whom."""
  generation = int(report.generation)
  directory.append(
    "pbt_members.jsonl",
    lineage.member_rows(
      generation,
      step,
      np.mean(report.evaluation.returns, axis=1),
      report.hyperparams,
    ),
  )
  directory.append(
    "pbt_lineage.jsonl",
    lineage.rows(
      generation, step, decision, report.fitness, report.hyperparams
    ),
  )


def _returns_text(row: dict[str, Any]) -> str:
  """What the progress line says of the returns."""
  if "pbt/best_return" in row:
    return (
      f"return best {row['pbt/best_return']:.1f} "
      f"mean {row['pbt/mean_return']:.1f}"
    )
  return f"return {row['eval/episode_return']:.1f}"
