"""A whole run: compile, train generation by generation, record, resume."""

import dataclasses
import math
import time
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from qdrl_haiku import types
from qdrl_haiku.controllers import lineage
from qdrl_haiku.training import records, repertoires
from qdrl_haiku.training.agents import read_agents, warm_start
from qdrl_haiku.training.checkpoints import Checkpoints
from qdrl_haiku.training.config import nearest_multiples, schedule
from qdrl_haiku.training.illumination import make_emitter
from qdrl_haiku.training.logs import MetricsWriter, RunDirectory
from qdrl_haiku.training.plots import plot_run
from qdrl_haiku.training.programs import compile_programs
from qdrl_haiku.training.progress import Progress
from qdrl_haiku.training.setup import Setup
from qdrl_haiku.training.sharding import population_mesh


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
    repertoire_interval: generations from one file and picture of the
      repertoire to the next, >= 1; the last generation has them anyway.
    num_reevaluations: how often each elite is evaluated again at the end, for
      `corrected.json`; 0 for not at all.

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
  repertoire_interval: int = 10
  num_reevaluations: int = 0

  def __post_init__(self) -> None:
    for name in (
      "num_timesteps",
      "checkpoint_interval",
      "max_checkpoints",
      "repertoire_interval",
    ):
      if getattr(self, name) < 1:
        raise ValueError(
          f"{name} must be at least 1, got {getattr(self, name)}."
        )
    if self.num_reevaluations < 0:
      raise ValueError(
        f"num_reevaluations must be at least 0, got {self.num_reevaluations}."
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
  interval = setup.steps_per_generation
  directory = RunDirectory(config.logdir)
  if config.resume:
    directory.go_on(settings)
  else:
    directory.begin(settings)
    if setup.map_elites is not None:
      repertoires.write_centroids(directory, setup.map_elites.tessellation)
  start = time.monotonic()
  mesh = setup.mesh or population_mesh(_shared_evenly(setup))
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
  first_row = None
  if setup.map_elites is not None and not record["generation"]:
    first_row = repertoires.first_row(setup, population, config.seeds[0])
    record["total_env_steps"] = first_row["total_env_steps"]

  # That of a run which is at its end already.
  row: dict[str, Any] = (directory.rows("metrics.jsonl") or [{}])[-1]
  for generation in range(
    record["generation"] + 1, config.num_timesteps // interval + 1
  ):
    generation_start = time.monotonic()
    population, report = programs.train_generation(population, run_key)
    best_state = report.best.state
    report = jax.device_get(
      report._replace(best=report.best._replace(state=None))
    )
    rates = records.rates(
      report, interval, time.monotonic() - generation_start
    )
    record = records.updated(
      record, report, interval, walltime=time.monotonic() - start
    )
    row = records.row(setup, config.seeds, report, record) | rates
    row["training/compile_seconds"] = programs.compile_seconds
    if first_row:
      # It has the columns of the others, which are known now.
      writer.write(dict.fromkeys(row, math.nan) | first_row)
      first_row = None
    writer.write(row)
    records.write(directory, setup, report, row["step"])
    if report.decision is not None and not report.finite.any():
      progress.say(
        "All members have diverged; they begin anew with other "
        "hyperparameters."
      )
      population = programs.restart(population, run_key)
    # A resumed run may come by a best one that it had written already.
    if record["best"] and record["best"]["step"] == row["step"]:
      best.save(row["step"], {"learner": best_state}, record["best"])
    is_last = row["step"] == config.num_timesteps
    if is_last or generation % config.checkpoint_interval == 0:
      checkpoints.save(row["step"], _to_trees(population), record)
    if setup.map_elites is not None and (
      is_last or generation % config.repertoire_interval == 0
    ):
      repertoires.write(
        directory,
        population.repertoire,
        setup.eval_env.descriptor,
        row["step"],
        settings,
      )
    progress.show(row, records.summary(row))
  if config.num_reevaluations:
    repertoires.write_corrected(
      directory,
      setup,
      population.repertoire,
      jax.random.fold_in(run_key, int(population.generation)),
      config.num_reevaluations,
    )
  for file in (progress, writer, checkpoints, best):
    file.close()
  plot_run(directory)
  return row


def _check(setup: Setup, config: RunConfig) -> None:
  """Refuses what doesn't fit, as `run` documents."""
  controller, size = setup.controller, setup.config.population_size
  if setup.map_elites is None:
    schedule(setup.config, setup.learner.batches_per_update)
    if config.num_reevaluations:
      raise ValueError(
        f"num_reevaluations is {config.num_reevaluations}, but there is no "
        "repertoire; leave it at 0."
      )
  else:
    if setup.eval_env.descriptor is None:
      raise ValueError(
        "a repertoire needs an environment with state descriptors; take one "
        "that has, or give yours a Descriptor."
      )
    if controller is not None:
      schedule(setup.config, setup.learner.batches_per_update)
    elif config.warm_start is not None:
      raise ValueError(
        f"warm_start={config.warm_start} has no effect: without a controller "
        "no agents train; leave it out."
      )
    make_emitter(setup)
  interval = setup.steps_per_generation
  if config.num_timesteps % interval:
    raise ValueError(
      f"num_timesteps {config.num_timesteps} must be a multiple of the "
      f"{interval} steps of a generation; the nearest: "
      f"{nearest_multiples(config.num_timesteps, interval)}."
    )
  if controller is not None:
    jax.eval_shape(lambda: controller.init(jax.random.key(0), size))
  if config.warm_start is not None and not config.resume:
    read_agents(setup.learner, config.warm_start)


def _shared_evenly(setup: Setup) -> int:
  """Of what devices have to share evenly, the greatest common divisor."""
  plan = setup.map_elites
  if plan is None:
    return setup.config.population_size
  sizes = [plan.variation_batch_size, plan.num_initial_genotypes]
  if setup.controller is not None:
    sizes.append(setup.config.population_size)
  return math.gcd(*sizes)


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
  population: Any,
) -> tuple[Any, dict[str, Any]]:
  """The population to go on with, and the record of what has been done."""
  step = checkpoints.latest() if config.resume else None
  if step is not None:
    record = checkpoints.record(step)
    for name in records.FILES:
      directory.forget_after(name, record["generation"])
    trees = checkpoints.restore(step, _to_trees(population))
    return _from_trees(trees, population), record
  for name in records.FILES:
    directory.forget_after(name, -1)
  if config.warm_start is not None:
    population = warm_start(setup, population, config.warm_start)
  if setup.controller is not None:
    directory.append(
      "pbt_lineage.jsonl", lineage.initial_rows(population.hyperparams)
    )
  return population, records.initial()


def _to_trees(population: Any) -> dict[str, Any]:
  """The parts of a population that can be read without the others."""
  if population.members is None:
    return {"population": population}
  return population.members._asdict() | {
    "population": population.with_members(())
  }


def _from_trees(trees: dict[str, Any], like: Any) -> Any:
  """The population of which these are the parts."""
  rest = trees.pop("population")
  return rest.with_members(type(like.members)(**trees)) if trees else rest
