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
  interruption,
  memory,
  records,
  resume,
  validation,
)
from qdrl_haiku.programs.runs import progress as progress_lib
from qdrl_haiku.programs.runs.checkpoint_timing import CheckpointPlan
from qdrl_haiku.programs.runs.compilation import Programs, make_programs
from qdrl_haiku.programs.runs.config import RunConfig
from qdrl_haiku.programs.runs.metrics_writer import MetricsWriter
from qdrl_haiku.programs.runs.repertoire_files import RepertoireFiles
from qdrl_haiku.programs.storage.checkpoints import Checkpoints
from qdrl_haiku.programs.storage.directory import RunDirectory
from qdrl_haiku.programs.storage.strict_json import Record
from qdrl_haiku.training.setup import Setup
from qdrl_haiku.training.state import GenerationReport, State


def run(
  setup: Setup, config: RunConfig, settings: Record,
  may_change: Collection[str] = (),
  callback: Callable[[Record], None] | None = None,
  programs: Callable[..., Programs] = make_programs,
) -> tuple[Record, State | None]:
  """Trains a population from its start, or from where it stopped, to the end.

  Args:
    setup: what the population is composed of; without a mesh it gets one of
      the devices that share it best.
    config: what the run is, with its directory.
    settings: all that the user set, for `config.json`.
    may_change: names of the settings that a resumed run may change.
    callback: called with the row of metrics of each generation.
    programs: (trainer, the run's key) -> `Programs`.

  Returns:
    The last row of metrics, and the final state; {} and None for a dry run.

  Raises:
    ValueError, OSError, Interrupted, Diverged, EndedDiverged: as
      `qdrl_haiku.train` does.
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
  available = memory.available_memory_bytes(mesh.local_devices)
  progress_lib.say(memory.describe_memory_plan(plan, available))
  progress_lib.say(validation.describe_valid_mesh(setup, is_chosen))
  memory.check_memory(plan, available, setup)
  if config.dry_run:
    return {}, None
  if config.resume:
    directory.go_on(settings, may_change)
  else:
    directory.begin(settings)
  progress_lib.say(f"writing to {config.logdir}")
  with (
    contextlib.closing(directory),
    progress_lib.progress_of_waiting(made.describe_compiling),
    interruption.interruptible() as interrupted,
  ):
    training = _Training(
      setup, config, settings, made, seeds, _run_key(seeds, mesh), directory)
    return training.train(interrupted, callback)


class _Training:
  """Trains a population, once the directory is there."""

  def __init__(
    self, setup: Setup, config: RunConfig, settings: Record,
    programs: Programs, seeds: range, run_key: types.Key,
    directory: RunDirectory,
  ) -> None:
    """Makes or reads the first state, while programs are compiled."""
    self._setup, self._config, self._programs = setup, config, programs
    self._seeds, self._run_key, self._directory = seeds, run_key, directory
    self._number = config.num_timesteps // setup.steps_per_generation
    self._recorder = None
    # Writes centroids when resuming too: a kill may have come before that.
    if setup.map_elites is not None:
      self._recorder = RepertoireFiles(setup, config, directory, settings)
    self._start = time.monotonic()
    programs.begin_to_compile()
    self._checkpoints, self._best = (
      Checkpoints(directory.path / x, writes=True)
      for x in ("checkpoints", "best"))
    self._state, self._record = resume.begin_or_resume(
      setup, config, directory, self._checkpoints, self._best, programs,
      run_key)
    # Imported during compilation too: it takes as long as all of haiku.
    from qdrl_haiku.programs.reports import pictures

    self._pictures = pictures
    programs.train.compile()
    self._compile_seconds = time.monotonic() - self._start
    # So that the time before an interruption counts too.
    self._start -= self._record["walltime"]

  def train(
    self, interrupted: interruption.Interruption,
    callback: Callable[[Record], None] | None,
  ) -> tuple[Record, State]:
    """Trains to the end, or until it's interrupted."""
    directory, config, recorder = self._directory, self._config, self._recorder
    interval = config.picture_interval
    writer = MetricsWriter(directory, config.log_to, bool(interval))
    done = self._record["generation"]
    progress = progress_lib.Progress(self._number, done)
    plan = CheckpointPlan(config.checkpoint_interval)
    first_row: Record = {}
    if recorder is not None and not done:
      self._record, first_row = records.first_record(
        self._record, self._seeds[0], self._state,
        recorder.first_metrics(self._state))
    # That of a run which is at its end already.
    row: Record = (directory.rows("metrics.jsonl") or [{}])[-1]
    for generation in range(done + 1, self._number + 1):
      interrupted.can_wait = True
      row, report, best_state = self._train_generation(generation, progress)
      if first_row:
        # It has the columns of the others, which are known now.
        writer.write(dict.fromkeys(row, math.nan) | first_row)
        first_row = {}
      writer.write(row)
      records.write_records(directory, self._setup, report, row["step"])
      if self._setup.trains_members and not report.finite.any():
        self._begin_anew(report)
      step, best = row["step"], self._record["best"]
      is_best = bool(best) and best["step"] == step
      if is_best:
        self._best.save(step, {"learner": best_state}, best)
      is_last = generation == self._number
      if interval and (is_last or generation % interval == 0):
        self._write_pictures(writer, step)
      # Last: a resumed run doesn't repeat what comes before its checkpoint.
      stops = is_last or hosts.any_host(interrupted.requested)
      is_due = stops or plan.is_due(generation)
      if is_due:
        with plan.writing():
          self._checkpoints.save(
            step, resume.trees_to_resume(config, self._state), self._record)
      if is_best or is_due:
        resume.forget_unneeded_for_resume(
          self._checkpoints, self._best, config.max_checkpoints)
      progress.show(row, records.summarize_record(row))
      if callback is not None:
        callback(row)
      if stops:
        break
    interrupted.can_wait = False
    self._finish(writer, was_done=done == self._number)
    return row, self._state

  def _train_generation(
    self, generation: int, progress: progress_lib.Progress
  ) -> tuple[Record, GenerationReport, types.Tree]:
    """Trains for a generation; returns row, report and the best agent."""
    start, setup, programs = time.monotonic(), self._setup, self._programs
    initial = programs.draw(self._run_key, generation)
    state, trained = programs.train(self._state, initial.pool, self._run_key)
    waited = programs.wait_to_evaluate(trained)
    self._state, report = programs.evaluate(
      state, trained, initial.evaluation, self._run_key)
    best_state = report.best.state
    report = jax.device_get(
      report._replace(best=report.best._replace(state=None)))
    rates = records.record_rates(
      setup, report, time.monotonic() - start - waited)
    self._compile_seconds += waited
    progress.wait(waited)
    self._record = records.update_record(
      self._record, setup, report, walltime=time.monotonic() - self._start)
    row = records.record_row(self._seeds, report, self._record) | rates
    row["training/compile_seconds"] = self._compile_seconds
    if self._recorder is not None:
      row |= self._recorder.record(
        self._state, self._run_key, generation, row["step"],
        is_last=generation == self._number)
    return row, report, best_state

  def _begin_anew(self, report: GenerationReport) -> None:
    """Replaces all members, which have diverged, or ends the run."""
    reason = divergence.cause_of_divergence(
      self._setup, self._state.members, report)
    divergence.warn_of_divergence(self._record["diverged"], reason)
    message = f"members have diverged in generation {report.generation}{reason}"
    if self._config.on_divergence == "stop":
      raise divergence.Diverged(
        f"all {message}; lower the learning rates, or resume with "
        "on_divergence=restart.")
    progress_lib.say(f"All {message}; they begin anew.")
    self._state = self._programs.restart(self._state, self._run_key)

  def _write_pictures(self, writer: MetricsWriter, step: int) -> None:
    """Draws the lineage so far; hands trackers all pictures of a step."""
    if hosts.is_first_host():
      with progress_lib.progress_without("picture of the lineage"):
        self._pictures.draw_lineage_picture(self._directory.path, step)
      with progress_lib.progress_without("picture in trackers"):
        writer.write_pictures(step)

  def _finish(self, writer: MetricsWriter, *, was_done: bool) -> None:
    """Says how the run ended, and draws its pictures and its film."""
    record, path = self._record, self._directory.path
    step, is_done = record["step"], record["generation"] >= self._number
    if self._recorder is not None and was_done:
      self._recorder.finish(self._state, self._run_key, step)
    if is_done and hosts.is_first_host():
      with progress_lib.progress_without("pictures in plots/"):
        self._pictures.draw_run_pictures(path)
      if self._config.film:
        with progress_lib.progress_without("film of the best agent"):
          self._pictures.draw_best_film(path, step, self._setup)
          writer.write_pictures(step, "best")
    writer.close()
    if not is_done:
      raise interruption.Interrupted(
        f"stopped after generation {record['generation']}")
    divergence.check_end_without_divergence(
      record.get("diverged", 0), self._number)


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
