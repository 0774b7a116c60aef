"""What every launcher does that trains: begin a run, and say how it ended."""

import datetime
import logging as python_logging
import os
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from absl import logging

from qdrl_haiku.cli import kept_programs, launch
from qdrl_haiku.cli.shared_flags import TrainingFlags


def run_training(
  flags: TrainingFlags,
  setup: Any,
  algorithm: str,
  seeds: Sequence[int],
  *,
  more_settings: Mapping[str, Any] | None = None,
  **run_settings: Any,
) -> str:
  """Trains, and says where the result is.

  Args:
    flags: of the run.
    setup: what the population is composed of.
    algorithm: for the name of the directory.
    seeds: one, or one per member.
    more_settings: what `config.json` is to hold beside the flags.
    **run_settings: what else `runs.RunConfig` is to hold.

  Returns:
    The run's directory.

  Raises:
    ValueError: if a setting is not valid.
  """
  import jax

  from qdrl_haiku import runs
  from qdrl_haiku.distributed import hosts

  if flags.logdir:
    flags.refuse_given(["suffix"], "--logdir is the whole name")
  # Of several processes each has a clock of its own.
  default = hosts.text_of_first(_default_logdir(flags, algorithm))
  logdir = flags.logdir or default
  settings = flags.settings(besides=launch.NOT_REMEMBERED) | {
    "launcher": launch.launcher_name(),
    "in_effect": _in_effect(setup),
    **(more_settings or {}),
  }
  config = runs.RunConfig(
    logdir=logdir,
    seeds=tuple(seeds),
    num_timesteps=flags.num_timesteps,
    dry_run=flags.dry_run,
    resume=flags.resume,
    warm_start=flags.warm_start,
    use_tensorboard=flags.use_tensorboard,
    checkpoint_interval=flags.checkpoint_interval,
    max_checkpoints=flags.max_checkpoints,
    checkpoint_replay=flags.checkpoint_replay,
    on_divergence=flags.on_divergence,
    kept=kept_programs.of_run(setup, settings),
    **run_settings,
  )
  if not flags.checkpoint_replay:
    logging.warning(
      "checkpoints are written without replay buffers: a resumed run begins "
      "with empty ones, and learns nothing until they have --min_replay_size "
      "transitions."
    )
  _warn_of_idleness(flags, setup)
  _check_activation(flags)
  is_first = jax.process_index() == 0
  if is_first and not flags.dry_run:
    print(f"writing to {logdir}", flush=True)
  to_go_on = f"go on with --resume --logdir={logdir}"
  if setup.on_host:
    to_go_on = f"begin another run with --warm_start={logdir}"
  try:
    runs.run(setup, config, settings)
  except runs.Interrupted as error:
    print(f"{error}; {to_go_on}", file=sys.stderr)
    sys.exit(runs.INTERRUPTED)
  except runs.Diverged as error:
    print(f"error: {error}", file=sys.stderr)
    sys.exit(1)
  except (MemoryError, OSError) as error:
    if flags.debug:
      raise
    reason = str(error) or "the memory ran out"
    mend = "mend it"
    if jax.process_count() > 1:
      mend += ", unless it is that another process is gone"
    _fail(f"{reason}; what was written before is whole: {mend}, and {to_go_on}")
  except jax.errors.JaxRuntimeError as error:
    if flags.debug or jax.process_count() == 1:
      raise
    reason = str(error).splitlines()[0]
    _fail(
      f"another process is gone or out of reach ({reason}); start all of them "
      f"with --resume --logdir={logdir}"
    )
  if is_first and not flags.dry_run:
    print(f"done: {logdir}")
  return logdir


def _warn_of_idleness(flags: TrainingFlags, setup: Any) -> None:
  """Says what won't begin before the run's end.

  That's no mistake where a run is to be resumed for longer.

  Args:
    flags: of the run.
    setup: what the population is composed of.
  """
  steps = flags.num_timesteps
  if setup.map_elites is None and steps < flags.min_replay_size:
    logging.warning(
      "nothing will be learned: an agent's %d steps don't reach "
      "--min_replay_size=%d transitions.", steps, flags.min_replay_size,
    )
  if setup.controller and steps <= setup.config.burn_in_period:
    logging.warning(
      "nobody will be replaced who hasn't diverged: --burn_in_period=%d lasts "
      "for all of --num_timesteps=%d.", setup.config.burn_in_period, steps,
    )


def _check_activation(flags: TrainingFlags) -> None:
  """Refuses weights that were learned for another activation.

  Nothing in a checkpoint tells which one it was.

  Raises:
    ValueError: if --warm_start names a run with another one.
  """
  from qdrl_haiku.storage.directory import RunDirectory

  if flags.resume or not flags.warm_start:
    return
  try:
    settings = RunDirectory(flags.warm_start).settings()
  except ValueError:
    return  # Training says so, and names the flag.
  theirs = settings.get("activation", flags.activation)
  if theirs != flags.activation:
    raise ValueError(
      f"--warm_start={flags.warm_start} has agents with "
      f"--activation={theirs}, not {flags.activation}; give that."
    )


def _in_effect(setup: Any) -> dict[str, Any]:
  """Returns what holds where flags leave it open, for who reads `config.json`.

  Args:
    setup: what the population is composed of.

  Returns:
    Settings by name, as JSON has them.
  """
  from qdrl_haiku.controllers import lineage
  from qdrl_haiku.cpu import switch

  hyperparams = lineage.named_leaves(setup.learner.hyperparams)
  env = getattr(setup.env, "env", setup.env)  # Of skills.
  backend = getattr(getattr(env, "unwrapped", None), "backend", None)
  return {
    "backend": backend if isinstance(backend, str) else None,
    "episode_length": setup.env.episode_length,
    "fitness": setup.config.fitness,
    "hyperparams": {name: float(x) for name, x in hyperparams.items()},
    "num_eval_episodes": setup.config.num_eval_episodes,
    "plain": switch.is_plain(),
  }


def _fail(message: str) -> NoReturn:
  """Ends the process with one line.

  Args:
    message: what went wrong, and what to do.
  """
  import jax

  # Threads of orbax that are still at it would report the same at length.
  python_logging.disable()
  sys.excepthook = lambda *_: None
  sys.unraisablehook = lambda *_: None
  print(f"error: {message}", file=sys.stderr, flush=True)
  if jax.process_count() > 1:
    # The usual way out would wait for the others.
    os._exit(1)
  sys.exit(1)


def _default_logdir(flags: TrainingFlags, algorithm: str) -> str:
  env_name = re.sub("[:/]", "-", flags.env_name)
  time = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
  suffix = f"-{flags.suffix}" if flags.suffix else ""
  return os.path.join("logs", f"{env_name}-{algorithm}-{time}{suffix}")
