"""Trains by flags: begins a run, and says how it ended."""

import logging as python_logging
import os
import sys
from typing import NoReturn

from qdrl_haiku import config as config_lib
from qdrl_haiku.cli import devices, launch
from qdrl_haiku.cli.flags import Given
from qdrl_haiku.experiment import Config, Program, read_config


def run(program: Program, summary: str) -> None:
  """Starts a program that trains, with the arguments of the command line."""
  own = program.flags() | config_lib.flags(devices.ProcessConfig())

  def main(given: Given) -> None:
    config = configure(program, given)
    repertoire = config.repertoire
    devices.prepare_jax(
      devices.configure(given),
      divides_repertoire=bool(repertoire and repertoire.shard_repertoire),
    )
    _train(config, shows_errors="debug" in given.typed)

  launch.run_main(main, own, summary, program.renamed)


def configure(program: Program, given: Given) -> Config:
  """Returns the configuration that flags, or a run to be resumed, ask for."""
  given = given.only(program.flags())
  if not given.values.get("resume"):
    return program.configure(given.values, given.typed)
  logdir = given.values.get("logdir")
  if not logdir:
    raise ValueError("--resume needs --logdir: which run is to go on?")
  from qdrl_haiku.storage.directory import RunDirectory

  settings = RunDirectory(logdir).settings()
  theirs = settings.get("launcher", f"{program.name}.py")
  if theirs != f"{program.name}.py":
    raise ValueError(
      f"--logdir={logdir} is a run of {theirs}, not {program.name}.py; resume "
      "it with that launcher."
    )
  program.configure(given.values, given.typed)  # Refuses what has no effect.
  read_config(logdir)  # Refuses what is damaged.
  return program.configure(settings | dict(given.values))


def _train(config: Config, *, shows_errors: bool) -> None:
  """Trains, and says where the result is, or how to go on."""
  import jax

  from qdrl_haiku import experiment, runs

  config = experiment.with_logdir(config)
  logdir = config.run.logdir
  to_go_on = f"go on with --resume --logdir={logdir}"
  if config.environment.is_on_host:
    to_go_on = f"begin another run with --warm_start={logdir}"
  try:
    experiment.train(config)
  except runs.Interrupted as error:
    print(f"{error}; {to_go_on}", file=sys.stderr)
    sys.exit(runs.INTERRUPTED)
  except runs.Diverged as error:
    print(f"error: {error}", file=sys.stderr)
    sys.exit(1)
  except runs.EndedDiverged as error:
    print(f"error: {error} What the run left is in {logdir}.", file=sys.stderr)
    sys.exit(runs.DIVERGED)
  except (MemoryError, OSError) as error:
    if shows_errors:
      raise
    reason = str(error) or "the memory ran out"
    mend = "mend it"
    if jax.process_count() > 1:
      mend += ", unless it is that another process is gone"
    _fail(f"{reason}; what was written before is whole: {mend}, and {to_go_on}")
  except jax.errors.JaxRuntimeError as error:
    if shows_errors or jax.process_count() == 1:
      raise
    reason = str(error).splitlines()[0]
    _fail(
      f"another process is gone or out of reach ({reason}); start all of them "
      f"with --resume --logdir={logdir}"
    )
  if jax.process_index() == 0 and not config.run.dry_run:
    print(f"done: {logdir}")


def _fail(message: str) -> NoReturn:
  """Ends the process with one line."""
  import jax

  # Threads of orbax that still write would report the same at length.
  python_logging.disable()
  sys.excepthook = lambda *_: None
  sys.unraisablehook = lambda *_: None
  print(f"error: {message}", file=sys.stderr, flush=True)
  if jax.process_count() > 1:
    # The usual way out would wait for the others.
    os._exit(1)
  sys.exit(1)
