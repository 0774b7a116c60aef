"""A whole run: compile, train generation by generation, record, resume."""

import contextlib
import math
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any

import jax
import numpy as np

from qdrl_haiku import compatibility, controllers, types
from qdrl_haiku.artifacts.agents import read_agents
from qdrl_haiku.distributed import hosts, sharding
from qdrl_haiku.runs import divergence, memory, records, repertoires, resume
from qdrl_haiku.runs.checkpoint_timing import CheckpointPlan
from qdrl_haiku.runs.config import RunConfig
from qdrl_haiku.runs.engines import Engine, State, make_engine
from qdrl_haiku.runs.interruption import (
  Interrupted,
  Interruption,
  interruptible,
)
from qdrl_haiku.runs.metrics_writer import MetricsWriter
from qdrl_haiku.runs.programs import Programs, compile_generation, make_programs
from qdrl_haiku.runs.progress import Progress
from qdrl_haiku.storage import row_files
from qdrl_haiku.storage.checkpoints import Checkpoints
from qdrl_haiku.storage.directory import RunDirectory
from qdrl_haiku.storage.program_cache import ProgramCache
from qdrl_haiku.training import setup as setup_lib
from qdrl_haiku.training.config import TrainingConfig, nearest_multiples
from qdrl_haiku.training.setup import Setup

Callback = Callable[[dict[str, Any]], None]
"""Called with the row of metrics of a generation."""


def run(
  setup: Setup,
  config: RunConfig,
  settings: dict[str, Any],
  may_change: Collection[str] = (),
  callback: Callback | None = None,
  cache: ProgramCache | None = None,
) -> tuple[dict[str, Any], State | None]:
  """Trains a population from its start, or from where it stopped, to the end.

  Args:
    setup: what the population is composed of; without a mesh it gets one of
      the devices that share it best.
    config: what the run is, with its directory.
    settings: all that the user set, for `config.json`.
    may_change: names of those with which a run may go on that began with
      others.
    callback: called with the row of metrics of each generation.
    cache: programs of earlier runs whose setup, devices and source were the
      same, and where those of this one are kept; None for no such thing.

  Returns:
    The last row of metrics, and what was trained; nothing of a dry run.

  Raises:
    ValueError: if the settings don't fit each other or what is in `logdir`.
    OSError: if something can't be written, or a checkpoint can't be read; the
      run can be resumed from its last checkpoint.
    Interrupted: if SIGTERM or Ctrl-C came; the run can be resumed.
    Diverged: if no member is finite, and `on_divergence` is "stop".
    EndedDiverged: if the run is done, but no member was finite after its last
      three generations, or after any.
  """
  # Everything is checked before anything is written.
  compatibility.check_numbers()
  _check(setup, make_engine(setup), config)
  is_chosen = setup.mesh is None
  mesh = setup.mesh or sharding.mesh_for(setup)
  setup = setup._replace(mesh=mesh)
  _check_mesh(setup)
  engine = make_engine(setup)
  seeds = _seeds(setup, config)
  programs = make_programs(setup, mesh, _run_key_shape(seeds, mesh), cache)
  plan = memory.memory_plan(
    setup, programs.population, programs.initial, config.num_reevaluations
  )
  # All processes have as much.
  available = memory.available_bytes(mesh.local_devices)
  if available is not None:
    available *= jax.process_count()
  if hosts.is_first():
    print(memory.describe(plan, available))
    print(_describe_devices(setup, is_chosen), flush=True)
  memory.check(plan, available)
  if config.dry_run:
    return {}, None
  directory = RunDirectory(_logdir(config))
  if config.resume:
    directory.go_on(settings, may_change)
  else:
    directory.begin(settings)
  # On resuming too: a kill may have come before it.
  engine.begin(directory)
  with contextlib.closing(directory), interruptible() as interruption:
    return _train(
      setup,
      engine,
      config,
      settings,
      programs,
      _run_key(seeds, mesh),
      seeds,
      directory,
      interruption,
      callback,
    )


def _train(
  setup: Setup,
  engine: Engine,
  config: RunConfig,
  settings: dict[str, Any],
  programs: Programs,
  run_key: types.Key,
  seeds: Sequence[int],
  directory: RunDirectory,
  interruption: Interruption,
  callback: Callback | None,
) -> tuple[dict[str, Any], State]:
  """Trains, once the directory is there."""
  num_generations = config.num_timesteps // setup.steps_per_generation
  start = time.monotonic()
  # The first population is made, or read, while the rest is compiled, and what
  # writes files is imported.
  programs = compile_generation(programs)
  checkpoints = Checkpoints(directory.path / "checkpoints", writes=True)
  best = Checkpoints(directory.path / "best", writes=True)
  population, record = resume.begin(
    setup, config, directory, checkpoints, best, programs, run_key
  )
  # So is what draws imported, which takes as long as all of haiku.
  from qdrl_haiku.reports import pictures

  programs.wait_to_train()
  compile_seconds = time.monotonic() - start
  # So that the time before an interruption counts too.
  start -= record["walltime"]
  writer = MetricsWriter(directory, config.use_tensorboard)
  progress = Progress(num_generations, record["generation"])
  plan = CheckpointPlan(config.checkpoint_interval, progress.say)
  look_again = engine.second_look(config.num_reevaluations)
  first_row = None
  if not record["generation"]:
    first_row = engine.first_row(population, seeds[0])
  if first_row is not None:
    record = records.begun(record, int(first_row["total_env_steps"]))

  # That of a run which is at its end already.
  row: dict[str, Any] = (directory.rows("metrics.jsonl") or [{}])[-1]
  was_done = record["generation"] == num_generations
  for generation in range(record["generation"] + 1, num_generations + 1):
    generation_start = time.monotonic()
    interruption.can_wait = True
    initial = programs.draw(run_key, generation)
    population, trained = programs.train(population, initial.pool, run_key)
    waited = programs.wait_to_evaluate(trained)
    population, report = programs.evaluate(
      population, trained, initial.evaluation, run_key
    )
    best_state = report.best.state
    report = jax.device_get(
      report._replace(best=report.best._replace(state=None))
    )
    rates = records.rates(
      setup, report, time.monotonic() - generation_start - waited
    )
    compile_seconds += waited
    progress.wait(waited)
    record = records.updated(
      record, setup, report, walltime=time.monotonic() - start
    )
    row = records.row(seeds, report, record) | rates
    row["training/compile_seconds"] = compile_seconds
    is_last = generation == num_generations
    again = look_again(
      population,
      run_key,
      is_last or _is_multiple(generation, config.reevaluation_interval),
    )
    row |= again.row
    if first_row:
      # It has the columns of the others, which are known now.
      writer.write(dict.fromkeys(row, math.nan) | first_row)
      first_row = None
    writer.write(row)
    records.write(directory, setup, report, row["step"])
    if setup.trains_members and not report.finite.any():
      reason = divergence.cause(setup, population.members, report)
      divergence.warn(record["diverged"], reason)
      population = _after_divergence(
        config, programs, population, run_key, generation, reason, progress
      )
    if record["best"] and record["best"]["step"] == row["step"]:
      best.save(row["step"], {"learner": best_state}, record["best"])
      resume.forget_unneeded(checkpoints, best, config.max_checkpoints)
    if (
      is_last
      or again.found is not None
      or _is_multiple(generation, config.repertoire_interval)
    ):
      engine.write(directory, population, row["step"], settings, again.found)
    # Last, since a resumed run goes on with what follows its checkpoint.
    stops = is_last or hosts.any_of_all(interruption.requested)
    if stops or plan.is_due(generation):
      with plan.writing():
        checkpoints.save(
          row["step"], resume.to_trees(config, population), record
        )
        resume.forget_unneeded(checkpoints, best, config.max_checkpoints)
    progress.show(row, records.summary(row))
    if callback is not None:
      callback(row)
    if stops:
      break
  interruption.can_wait = False
  asked = config.num_reevaluations
  if was_done and asked != repertoires.known_reevaluations(directory):
    again = look_again(population, run_key, True)
    if again.found is not None:
      engine.write(directory, population, row["step"], settings, again.found)
  for file in (progress, writer, checkpoints, best):
    file.close()
  if row["generation"] < num_generations:
    raise Interrupted(f"stopped after generation {row['generation']}")
  if hosts.is_first():
    pictures.plot_run(directory.path)
  divergence.check_end(record.get("diverged", 0), num_generations)
  return row, population


def _is_multiple(generation: int, interval: int | None) -> bool:
  return interval is not None and generation % interval == 0


def _after_divergence(
  config: RunConfig,
  programs: Programs,
  population: State,
  run_key: types.Key,
  generation: int,
  reason: str,
  progress: Progress,
) -> State:
  """Makes new members in place of those that have all diverged, or ends."""
  if config.on_divergence == "stop":
    raise divergence.Diverged(
      f"all members have diverged in generation {generation}{reason}; lower "
      "the learning rates, or resume with on_divergence=restart."
    )
  progress.say(
    f"All members have diverged in generation {generation}{reason}; they begin "
    "anew."
  )
  return programs.restart(population, run_key)


def _check(setup: Setup, engine: Engine, config: RunConfig) -> None:
  """Refuses what doesn't fit, as `run` documents."""
  setup_lib.check(setup)
  if setup.on_host:
    _check_on_host(setup, config)
  engine.check(config)
  interval = setup.steps_per_generation
  if config.num_timesteps % interval:
    raise ValueError(
      f"num_timesteps {config.num_timesteps} must be a multiple of the "
      f"{interval} steps of a generation; the nearest: "
      f"{nearest_multiples(config.num_timesteps, interval)}."
    )
  if setup.controller is not None:
    controllers.check(setup.controller, setup.config.population_size)
    first = setup.controller.first_decision
    if first is not None and first * interval > config.num_timesteps:
      raise ValueError(
        f"the controller replaces nobody before its decision {first} "
        f"(first_rung), but num_timesteps {config.num_timesteps} has "
        f"{config.num_timesteps // interval} generations; lower first_rung, or "
        "raise num_timesteps."
      )
  if config.resume:
    directory = RunDirectory(_logdir(config))
    for name in row_files.FILES:  # Raises if one is damaged.
      directory.rows(name)
    rows = directory.rows("metrics.jsonl", row_files.COLUMNS["metrics.jsonl"])
    if rows and rows[-1]["generation"] * interval > config.num_timesteps:
      raise ValueError(
        f"num_timesteps {config.num_timesteps} is less than the "
        f"{rows[-1]['generation'] * interval} that the run in {config.logdir} "
        "has done; give more, or leave it out."
      )
  elif config.warm_start is not None:
    try:
      read_agents(setup.learner, config.warm_start)
    except ValueError as error:
      raise ValueError(f"warm_start={config.warm_start}: {error}") from error


def _check_mesh(setup: Setup) -> None:
  """Refuses what the devices can't share."""
  mesh, plan = setup.mesh, setup.map_elites
  assert mesh is not None
  if jax.process_count() > 1 and mesh.size != jax.device_count():
    raise ValueError(
      f"mesh has {mesh.size} of the {jax.device_count()} devices of "
      f"{jax.process_count()} processes, and each process has to take part "
      "with all of its own; leave the mesh out."
    )
  if plan is not None and plan.shard_repertoire:
    num_cells = plan.tessellation.num_cells
    if num_cells % mesh.size:
      raise ValueError(
        f"shard_repertoire: {mesh.size} devices can't share {num_cells} cells "
        "evenly; the nearest numbers: "
        f"{nearest_multiples(num_cells, mesh.size)}."
      )


def _describe_devices(setup: Setup, is_chosen: bool) -> str:
  """Words for people how many devices have something to do.

  Args:
    setup: with a mesh.
    is_chosen: whether the mesh follows from the number of agents.

  Returns:
    A line.
  """
  mesh, size = setup.mesh, setup.batch_sizes[0]
  assert mesh is not None
  available = jax.device_count()
  line = f"{'devices used':<34}{f'{mesh.size} of {available}':>10}"
  if setup.on_host:
    return f"{line}, since the environment is on the host"
  if num_idle := sharding.num_slots(mesh, size) - size:
    line += f", with {size} agents in {size + num_idle} slots"
  if is_chosen and mesh.size < available:
    # Cells that devices share decide first how many of them there can be.
    unit, count = "agents", size
    if setup.num_shared_cells % available:
      unit, count = "cells", setup.num_shared_cells
    line += f"; {nearest_multiples(count, available)} {unit} would use all"
  return line


def _check_on_host(setup: Setup, config: RunConfig) -> None:
  """Refuses what environments can't do whose states jax doesn't hold."""
  if config.resume:
    raise ValueError(
      "resume needs an environment whose state a checkpoint holds, and this "
      "one is on the host, so the run couldn't go on as it would have; begin "
      f"another with warm_start={config.logdir}."
    )
  if jax.process_count() > 1:
    raise ValueError(
      f"there are {jax.process_count()} processes, but an environment on the "
      "host feeds one device; start one."
    )
  if setup.mesh is not None and setup.mesh.size > 1:
    raise ValueError(
      f"mesh has {setup.mesh.size} devices, but an environment on the host "
      "feeds one; leave the mesh out."
    )
  if setup.config.pool_size != TrainingConfig.pool_size:
    raise ValueError(
      f"pool_size={setup.config.pool_size} has no effect: states of an "
      "environment on the host can't be kept; leave it out."
    )
  train_env, eval_env = (
    getattr(env, "env", env) for env in (setup.env, setup.eval_env)
  )
  if train_env is eval_env:
    raise ValueError(
      "eval_env is env, but an environment on the host has one set of "
      "instances; create another to evaluate in."
    )


def _logdir(config: RunConfig) -> str:
  """Returns the run's directory, which has to be given."""
  if not config.logdir:
    raise ValueError("logdir is missing: where is the run to be?")
  return config.logdir


def _seeds(setup: Setup, config: RunConfig) -> range:
  """Returns the run's seed, or one per member that is a run of its own."""
  is_several = setup.controller is None and setup.map_elites is None
  number = setup.config.population_size if is_several else 1
  seeds = range(config.seed, config.seed + number)
  if seeds[-1] >= 2**32:
    raise ValueError(
      f"seed must be at least 0 and below 2**32, got {seeds[-1]}."
    )
  return seeds


def _run_key_shape(
  seeds: Sequence[int], mesh: jax.sharding.Mesh
) -> jax.ShapeDtypeStruct:
  """Returns shape, dtype and sharding of `_run_key`, however many seeds."""
  dtype = jax.eval_shape(lambda: jax.random.key(0)).dtype
  shape = (len(seeds),) if len(seeds) > 1 else ()
  replicated = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
  return jax.ShapeDtypeStruct(shape, dtype, sharding=replicated)


def _run_key(seeds: Sequence[int], mesh: jax.sharding.Mesh) -> types.Key:
  """Returns the run's key, or one per seed, on all devices."""
  keys = jax.vmap(jax.random.key)(np.asarray(seeds, np.uint32))
  return sharding.put(mesh, keys if len(seeds) > 1 else keys[0])
