"""The programs that train: each begins a run, and says how it ended."""

import dataclasses
import inspect
import logging as python_logging
import os
import re
import sys
from collections.abc import Callable
from typing import NoReturn

import jax

from qdrl_haiku import checks, environments
from qdrl_haiku import config as config_lib
from qdrl_haiku.programs import experiment, runs
from qdrl_haiku.programs.cli import devices, launch, lost
from qdrl_haiku.programs.cli.launch import Given
from qdrl_haiku.programs.experiment import Config, Launcher
from qdrl_haiku.programs.experiment.plan import check_hyperparameters
from qdrl_haiku.programs.storage.directory import RunDirectory


def train_from_flags() -> None:
  """Trains one learner, or several seeds of it side by side.

  python launchers/train.py --learner=sac --env_name=reacher --population_size=3
  """
  _run(experiment.TRAIN, train_from_flags)


def train_pbt_from_flags() -> None:
  """Trains a population of agents and tunes it by population-based training.

  python launchers/train_pbt.py --flagfile=launchers/flagfiles/quickstart.flags
  """
  _run(experiment.TRAIN_PBT, train_pbt_from_flags)


def train_me_pbt_from_flags() -> None:
  r"""Fills a repertoire with agents: MAP-Elites, or ME-PBT.

  python launchers/train_me_pbt.py \
    --flagfile=launchers/flagfiles/me_pbt_point_maze.flags
  """
  _run(experiment.TRAIN_ME_PBT, train_me_pbt_from_flags)


def _run(program: Launcher, start: Callable[[], None]) -> None:
  """Runs a program, whose `--help` begins as the function that starts it."""
  own = program.flags() | config_lib.config_tree_flags(devices.ProcessConfig())

  def main(given: Given) -> None:
    refusals = checks.Refusals(given.refused)
    with refusals.noted():
      processes = given.fill(devices.ProcessConfig())
    given = given._replace(refused=tuple(refusals.messages))
    config = configure_training_from_flags(program, given)
    repertoire = config.repertoire
    devices.prepare_jax_devices(
      processes,
      divides_repertoire=bool(repertoire and repertoire.shard_repertoire))
    _train(config, shows_errors=bool(given.values.get("debug")))

  launch.launch_main(main, own, inspect.getdoc(start) or "", program.former)


def configure_training_from_flags(program: Launcher, given: Given) -> Config:
  """Returns the configuration that flags, or a run to be resumed, ask for.

  Raises:
    ValueError: if flags are wrong; then the rest is looked at as far as it can.
  """
  given = given.only(program.flags())
  with checks.Refusals(given.refused) as refusals:
    if given.values.get("resume"):
      return _resumed(program, given)
    with refusals.noted():
      config = program.configure(given.values, given.strictly_typed)
    if refusals:
      _look_further(given, refusals)
  return config


def _look_further(given: Given, refusals: checks.Refusals) -> None:
  """Refuses what can be known beside flags that are wrong."""
  values = given.values
  if logdir := values.get("logdir"):
    with refusals.noted():
      RunDirectory(logdir).check_begins()
  if not any(":" in values.get(x, "") for x in ("learner", "base_learner")):
    with refusals.noted():
      check_hyperparameters(values)
  env = environments.EnvironmentConfig()
  values = given.only(config_lib.config_tree_flags(env)).values
  if "env_name" in values:
    with refusals.noted():
      try:
        config_lib.replace_in_config_tree(env, values).make()
      except Exception as error:
        # A user's code is to blame when the flags are right.
        if isinstance(error, ValueError):
          raise


def _resumed(program: Launcher, given: Given) -> Config:
  """Returns the configuration of a run to be resumed."""
  logdir = given.values.get("logdir")
  if not logdir:
    raise ValueError("--resume needs --logdir: which run is to go on?")
  settings = RunDirectory(logdir).settings()
  ours = f"{program.name}.py"
  theirs = settings.get("launcher", ours)
  if theirs != ours:
    raise ValueError(
      f"--logdir={logdir} is a run of {theirs}, not {ours}; resume it with "
      "that launcher.")
  config = experiment.read_config(logdir)
  if "num_timesteps" in given.values:  # In place of a number of generations.
    run = dataclasses.replace(config.run, num_generations=None)
    config = dataclasses.replace(config, run=run)
  return program._replace(defaults=config).configure(given.values, given.typed)


def _train(config: Config, *, shows_errors: bool) -> None:
  """Trains, and says where the result is, or how to go on."""
  config = experiment.with_train_logdir(config)
  logdir = config.run.logdir
  to_go_on = f"go on with --resume --logdir={logdir}"
  lost.advise_lost(f"start all of them with --resume --logdir={logdir}")
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
    fix = "fix it"
    if jax.process_count() > 1:
      fix += ", unless it is that another process is gone"
    _fail(f"{reason}; what was written before is whole: {fix}, and {to_go_on}")
  except (jax.errors.JaxRuntimeError, ValueError) as error:
    # Some calls raise XLA's errors as ValueErrors, which begin with their code.
    is_of_xla = re.match("[A-Z_]+: ", str(error))
    if shows_errors or jax.process_count() == 1 or not is_of_xla:
      raise
    lost.leave_lost(error)
  if jax.process_index() == 0 and not config.run.dry_run:
    print(f"done: {logdir}")


def _fail(message: str) -> NoReturn:
  # Threads of orbax that still write would report the same at length.
  python_logging.disable()
  sys.excepthook = lambda *_: None
  sys.unraisablehook = lambda *_: None
  print(f"error: {message}", file=sys.stderr, flush=True)
  if jax.process_count() > 1:
    # The usual way out would wait for the others.
    os._exit(1)
  sys.exit(1)
