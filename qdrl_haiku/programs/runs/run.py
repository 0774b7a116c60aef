"""A whole run: compile, train generation by generation, record, resume."""

import contextlib
import math
import time
from collections.abc import Callable, Collection

import jax
import numpy as np

from qdrl_haiku import checks, compatibility, types
from qdrl_haiku.distributed import hosts, sharding
from qdrl_haiku.programs.runs import (
  divergence,
  memory,
  records,
  resume,
  validation,
)
from qdrl_haiku.programs.runs.checkpoint_timing import CheckpointPlan
from qdrl_haiku.programs.runs.compilation import Programs, make_programs
from qdrl_haiku.programs.runs.config import RunConfig
from qdrl_haiku.programs.runs.interruption import (
  Interrupted,
  Interruption,
  interruptible,
)
from qdrl_haiku.programs.runs.metrics_writer import MetricsWriter
from qdrl_haiku.programs.runs.progress import Progress, progress_of_waiting
from qdrl_haiku.programs.runs.records import Record, Row
from qdrl_haiku.programs.runs.repertoire_files import RepertoireFiles
from qdrl_haiku.programs.storage.checkpoints import Checkpoints
from qdrl_haiku.programs.storage.directory import RunDirectory
from qdrl_haiku.training.setup import Setup
from qdrl_haiku.training.state import State


def run(
  setup: Setup, config: RunConfig, settings: Record,
  may_change: Collection[str] = (),
  callback: Callable[[Row], None] | None = None,
  programs: Callable[..., Programs] = make_programs,
) -> tuple[Row, State | None]:
  """Trains a population from its start, or from where it stopped, to the end.

  Args:
    setup: what the population is composed of; without a mesh it gets one of
      the devices that share it best.
    config: what the run is, with its directory.
    settings: all that the user set, for `config.json`.
    may_change: names of the settings that a resumed run may change.
    callback: called with the row of metrics of each generation.
    programs: (trainer, the run's key) -> `Programs`; by default they are
      compiled anew.

  Returns:
    The last row of metrics, and the final state; {} and None for a dry run.

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
  compatibility.check_numeric_compatibility()
  directory = RunDirectory(validation.valid_logdir(config))
  is_chosen = setup.mesh is None
  mesh = setup.mesh or setup.make_mesh()
  setup = setup._replace(mesh=mesh)
  with checks.Refusals() as refusals:
    with refusals.noted():
      trainer = validation.prepare_valid_run(setup, config)
    if config.resume:
      directory.check_goes_on(settings, may_change)
    else:
      directory.check_begins()
  validation.check_valid_mesh(setup)
  seeds = validation.valid_seeds(setup, config)
  made = programs(trainer, _run_key_shape(seeds, mesh))
  plan = memory.memory_plan(
    trainer, made.state, made.initial, config.num_reevaluations)
  # All processes have as much.
  available = memory.available_memory_bytes(mesh.local_devices)
  if available is not None:
    available *= jax.process_count()
  if hosts.is_first_host():
    print(memory.describe_memory_plan(plan, available))
    print(validation.describe_valid_mesh(setup, is_chosen), flush=True)
  memory.check_memory(plan, available, setup)
  if config.dry_run:
    return {}, None
  if config.resume:
    directory.go_on(settings, may_change)
  else:
    directory.begin(settings)
  if hosts.is_first_host():
    print(f"writing to {config.logdir}", flush=True)
  with (
    contextlib.closing(directory),
    progress_of_waiting(made.describe_compiling),
    interruptible() as interruption,
  ):
    return _train(
      setup, config, settings, made, seeds, _run_key(seeds, mesh), directory,
      interruption, callback)


def _train(
  setup: Setup, config: RunConfig, settings: Record, programs: Programs,
  seeds: range, run_key: types.Key, directory: RunDirectory,
  interruption: Interruption, callback: Callable[[Row], None] | None,
) -> tuple[Row, State]:
  """Trains, once the directory is there."""
  recorder = None
  # Writes centroids when resuming too: a kill may have come before that.
  if setup.map_elites is not None:
    recorder = RepertoireFiles(setup, config, directory, settings)
  num_generations = config.num_timesteps // setup.steps_per_generation
  start = time.monotonic()
  # The first state is made, or read, while the rest is compiled, and what
  # writes files is imported.
  programs.begin_to_compile()
  checkpoints = Checkpoints(directory.path / "checkpoints", writes=True)
  best = Checkpoints(directory.path / "best", writes=True)
  state, record = resume.begin_or_resume(
    setup, config, directory, checkpoints, best, programs, run_key)
  # Imported during compilation too: it takes as long as all of haiku.
  from qdrl_haiku.programs.reports import pictures

  programs.train.compile()
  compile_seconds = time.monotonic() - start
  # So that the time before an interruption counts too.
  start -= record["walltime"]
  writer = MetricsWriter(directory, config.log_to)
  progress = Progress(num_generations, record["generation"])
  plan = CheckpointPlan(config.checkpoint_interval, progress.say)
  first_row: Row = {}
  was_done = record["generation"] == num_generations
  if recorder is not None and not record["generation"]:
    known = recorder.metrics(recorder.shown(state))
    record, first_row = records.first_record(record, seeds[0], state, known)

  # That of a run which is at its end already.
  row: Row = (directory.rows("metrics.jsonl") or [{}])[-1]
  for generation in range(record["generation"] + 1, num_generations + 1):
    generation_start = time.monotonic()
    interruption.can_wait = True
    initial = programs.draw(run_key, generation)
    state, trained = programs.train(state, initial.pool, run_key)
    waited = programs.wait_to_evaluate(trained)
    state, report = programs.evaluate(
      state, trained, initial.evaluation, run_key)
    best_state = report.best.state
    report = jax.device_get(
      report._replace(best=report.best._replace(state=None)))
    rates = records.record_rates(
      setup, report, time.monotonic() - generation_start - waited)
    compile_seconds += waited
    progress.wait(waited)
    record = records.update_record(
      record, setup, report, walltime=time.monotonic() - start)
    row = records.record_row(seeds, report, record) | rates
    row["training/compile_seconds"] = compile_seconds
    step, is_last = row["step"], generation == num_generations
    if recorder is not None:
      row |= recorder.record(state, run_key, generation, step, is_last)
    if first_row:
      # It has the columns of the others, which are known now.
      writer.write(dict.fromkeys(row, math.nan) | first_row)
      first_row = {}
    writer.write(row)
    records.write_records(directory, setup, report, step)
    if setup.trains_members and not report.finite.any():
      reason = divergence.cause_of_divergence(setup, state.members, report)
      divergence.warn_of_divergence(record["diverged"], reason)
      message = f"members have diverged in generation {generation}{reason}; "
      if config.on_divergence == "stop":
        raise divergence.Diverged(
          f"all {message}lower the learning rates, or resume with "
          "on_divergence=restart.")
      progress.say(f"All {message}they begin anew.")
      state = programs.restart(state, run_key)
    if record["best"] and record["best"]["step"] == step:
      best.save(step, {"learner": best_state}, record["best"])
      resume.forget_unneeded_for_resume(
        checkpoints, best, config.max_checkpoints)
    # Last: a resumed run doesn't repeat what comes before its checkpoint.
    stops = is_last or hosts.any_host(interruption.requested)
    if stops or plan.is_due(generation):
      with plan.writing():
        checkpoints.save(step, resume.trees_to_resume(config, state), record)
        resume.forget_unneeded_for_resume(
          checkpoints, best, config.max_checkpoints)
    progress.show(row, records.summarize_record(row))
    if callback is not None:
      callback(row)
    if stops:
      break
  interruption.can_wait = False
  if recorder is not None and was_done:
    recorder.finish(state, run_key, record["step"])
  writer.close()
  if record["generation"] < num_generations:
    raise Interrupted(f"stopped after generation {record['generation']}")
  if hosts.is_first_host():
    pictures.draw_run_pictures(directory.path)
  divergence.check_end_without_divergence(
    record.get("diverged", 0), num_generations)
  return row, state


def _run_key_shape(
  seeds: range, mesh: jax.sharding.Mesh
) -> jax.ShapeDtypeStruct:
  """Returns shape, dtype and sharding of `_run_key`, however many seeds."""
  dtype = jax.eval_shape(lambda: jax.random.key(0)).dtype
  shape = (len(seeds),) if len(seeds) > 1 else ()
  replicated = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
  return jax.ShapeDtypeStruct(shape, dtype, sharding=replicated)


def _run_key(seeds: range, mesh: jax.sharding.Mesh) -> types.Key:
  """Returns the run's key, or one per seed, on all devices."""
  keys = jax.vmap(jax.random.key)(np.asarray(seeds, np.uint32))
  return sharding.put_keys_on_mesh(mesh, keys if len(seeds) > 1 else keys[0])
