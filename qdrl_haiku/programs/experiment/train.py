"""Training what a configuration describes, from its start or its checkpoint."""

import dataclasses
import datetime
import os
import re
from collections.abc import Callable
from typing import NamedTuple

from absl import logging

from qdrl_haiku import checks, environments, platform, training, trees, types
from qdrl_haiku import config as config_lib
from qdrl_haiku.distributed import hosts
from qdrl_haiku.programs import runs
from qdrl_haiku.programs.experiment.config import Config, experiment_launcher
from qdrl_haiku.programs.experiment.plan import Plan, plan_experiment
from qdrl_haiku.programs.storage.directory import RunDirectory
from qdrl_haiku.types import Record


class Result(NamedTuple):
  """Holds what a run came to."""

  logdir: str  # Directory of the run.
  metrics: Record  # The last row of `metrics.jsonl`; empty of a dry run.
  state: types.Tree  # What was trained, at the end; None of a dry run.


def train(
  config: Config, callback: Callable[[Record], None] | None = None
) -> Result:
  """Trains what a configuration describes, and writes a run's directory.

  Args:
    config: of the run.
    callback: called with the row of metrics of each generation.

  Returns:
    Where the run is, and what it came to.

  Raises:
    ValueError: if a setting is wrong or has no effect beside the others, before
      anything is compiled or written.
    OSError: if something can't be written, or a checkpoint can't be read; the
      run can be resumed from its last checkpoint.
    Interrupted: if SIGTERM or Ctrl-C came; the run can be resumed.
    Diverged: if the run ended because no agent was finite.
    EndedDiverged: if the run is done, but no agent was finite in the end.
  """
  config = with_train_logdir(config)
  with checks.Refusals() as refusals:
    with refusals.noted():
      _check_directories(config)
    made = plan_experiment(config)
  _warn(made)
  program = experiment_launcher(config)
  settings = config_lib.config_tree_values(made.config) | {
    "launcher": f"{program.name}.py",
    "in_effect": _values_in_effect(made.setup)}
  if made.setup.controller is not None:
    settings["ranges"] = {
      name: {"kind": type(values).__name__} | dataclasses.asdict(values)
      for name, values in trees.tree_leaves_by_name(made.search_space).items()}
  flags = program.settings().items()
  may_change = [name for name, flag in flags if flag.declared.may_change]
  note = getattr(environments.one_instance(made.setup.env), "note", None)
  if note is not None and hosts.is_first_host() and not config.run.dry_run:
    print(note, flush=True)
  metrics, state = runs.run(
    made.setup, made.config.run, settings, may_change, callback)
  return Result(str(config.run.logdir), metrics, state)


def with_train_logdir(config: Config) -> Config:
  """Names a new directory by task, algorithm and time, if none is given."""
  if config.run.logdir:
    return config
  if config.run.resume:
    raise ValueError("--resume needs --logdir: which run is to go on?")
  env_name = re.sub(r"[:/\\]", "-", config.environment.env_name)
  # With microseconds: several runs may be started at once.
  time = datetime.datetime.now().strftime("%Y%m%d-%H%M%S-%f")
  # Each process has a clock of its own.
  name = hosts.text_of_first_host(f"{env_name}-{config.algorithm}-{time}")
  run = dataclasses.replace(config.run, logdir=os.path.join("logs", name))
  return dataclasses.replace(config, run=run)


def _warn(made: Plan) -> None:
  """Warns if a run is too short to learn or replace, or saves no replay."""
  run, settings = made.config.run, made.setup.config
  stores = not made.setup.on_policy
  if stores and not run.checkpoint_replay:
    logging.warning(
      "checkpoints are written without replay buffers: a resumed run begins "
      "with empty ones, and learns nothing until they have --min_replay_size "
      "transitions.")
  is_plain = made.setup.map_elites is None
  if stores and is_plain and run.num_timesteps < settings.min_replay_size:
    logging.warning(
      "nothing will be learned: an agent's %d steps don't reach "
      "--min_replay_size=%d transitions.",
      run.num_timesteps, settings.min_replay_size)
  if made.setup.controller and run.num_timesteps < settings.burn_in_period:
    logging.warning(
      "no finite agent will be replaced: --burn_in_period=%d lasts for all of "
      "--num_timesteps=%d.",
      settings.burn_in_period, run.num_timesteps)


def _check_directories(config: Config) -> None:
  """Refuses to begin where a run is, or with agents of another activation."""
  logdir, other = config.run.logdir, config.run.warm_start
  if config.run.resume:
    return
  with checks.Refusals() as refusals:
    with refusals.noted():
      RunDirectory(str(logdir)).check_begins()
    if not other:
      return
    try:
      settings = RunDirectory(other).settings()
    except ValueError as error:
      raise ValueError(f"warm_start={other}: {error}") from error
    ours = config_lib.config_tree_values(config).get("activation")
    theirs = settings.get("activation", ours)
    if ours is not None and theirs != ours:
      raise ValueError(
        f"--warm_start={other} has agents with --activation={theirs}, not "
        f"{ours}; give that.")


def _values_in_effect(setup: training.Setup) -> dict[str, object]:
  """Returns the values of what settings leave open, as JSON has them."""
  hyperparams = trees.tree_leaves_by_name(setup.learner.hyperparams)
  backend = getattr(environments.one_instance(setup.env), "backend", None)
  return {
    "backend": backend if isinstance(backend, str) else None,
    "episode_length": setup.env.episode_length, "fitness": setup.config.fitness,
    "hyperparams": {name: float(x) for name, x in hyperparams.items()},
    "num_eval_episodes": setup.config.num_eval_episodes,
    "plain": platform.is_switched_to_plain()}
