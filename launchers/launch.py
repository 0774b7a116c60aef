"""What every launcher does with its flags: parse, prepare, train, complain."""

import atexit
import datetime
import gc
import logging as python_logging
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import devices
import learner_flags
from absl import app, flags, logging

FLAGS = flags.FLAGS

# Flags that say where a run is, not what it is.
_PLACE = ("compilation_cache_dir", "logdir", "resume", "suffix")
# Flags of this one start, which no run remembers.
_NOT_REMEMBERED = ("debug", "dry_run", *devices.PROCESS_FLAGS)
# What a flag of a kind, as absl calls it, wants.
_OF_KIND = {
  "bool": "true or false",
  "float": "a number",
  "int": "an integer",
}


def run_main(
  main: Callable[[], None], flag_names: Mapping[str, str] | None = None
) -> None:
  """Parses flags, calls `main`, and turns a user's mistake into one line.

  Args:
    main: of a launcher.
    flag_names: what the launcher's flags call settings that have another name
      in the package, for messages.
  """

  def guarded(argv: Sequence[str]) -> None:
    # orbax reports every file that it writes.
    logging.set_verbosity(logging.WARNING)
    # matplotlib reports fonts of an environment that is gone.
    python_logging.getLogger("matplotlib").setLevel(python_logging.ERROR)
    try:
      if len(argv) > 1:
        raise ValueError(
          f"unexpected argument {argv[1]!r}; flags begin with --."
        )
      main()
    except ValueError as error:
      if FLAGS.debug:
        raise
      message = str(error)
      for name, flag in (flag_names or {}).items():
        message = re.sub(rf"\b{name}\b", flag, message)
      print(f"error: {message}", file=sys.stderr)
      sys.exit(2)

  # What jax traces is made of millions of objects that stay: to look through
  # them for garbage every 700 new ones takes a fifth of the time of tracing.
  gc.set_threshold(100_000)
  # Nor once more at the end, which would take another second or two.
  atexit.register(gc.freeze)
  # XLA complains at length about each program that it reads from the cache.
  # What is an error to us is an exception anyway.
  os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
  flags.DEFINE_bool("debug", False, "Shows where an error comes from.")
  for flag in _launchers_flags():
    # So that --help lists it.
    FLAGS.register_key_flag_for_module(sys.argv[0], flag)
  app.run(guarded, flags_parser=_parse)


def _parse(argv: Sequence[str]) -> list[str]:
  """Parses flags; a wrong one ends the launcher with one line.

  Args:
    argv: the command line.

  Returns:
    What is left of it.

  Raises:
    SystemExit: if a flag isn't known, or its value isn't of its type.
  """
  try:
    return FLAGS(argv)
  except flags.UnrecognizedFlagError as error:
    from qdrl_haiku import names

    known = [flag.name for flag in _launchers_flags()]
    fix = names.nearest(error.flagname, known)
    if not fix.startswith("did you mean"):
      fix = "--help lists those that there are."
    message = f"--{error.flagname} is no flag of this launcher; {fix}"
  except flags.IllegalFlagValueError as error:
    # Of the form "flag --name=value: reason".
    flag = str(error).removeprefix("flag ").partition(": ")[0]
    kind = FLAGS[flag[2:].partition("=")[0]].flag_type()
    fix = _OF_KIND.get(kind, f"a {kind}")
    message = f"{flag} has a wrong value; give {fix}."
  except (flags.Error, ValueError) as error:
    message = " ".join(str(error).removeprefix("ERROR:: ").split())
    message = f"{message}; see --help."
  print(f"error: {message}", file=sys.stderr)
  sys.exit(2)


def prepare() -> None:
  """Does what each training launcher begins with.

  Raises:
    ValueError: if there is no run to be resumed by this launcher.
  """
  if FLAGS.resume:
    if not FLAGS.logdir:
      raise ValueError("--resume needs --logdir: which run is to go on?")
    _check_launcher()
    use_settings_of(FLAGS.logdir, besides=_PLACE)
  devices.prepare_jax()


def _name() -> str:
  """The launcher's, such as train.py."""
  return os.path.basename(sys.argv[0])


def _check_launcher() -> None:
  """Refuses to go on with the run of another launcher.

  Raises:
    ValueError: if it is one, or if there is no run.
  """
  from qdrl_haiku.training import logs

  theirs = logs.RunDirectory(FLAGS.logdir).settings().get("launcher", _name())
  if theirs != _name():
    raise ValueError(
      f"--logdir={FLAGS.logdir} is a run of {theirs}, not {_name()}; resume it "
      "with that launcher."
    )


def use_settings_of(logdir: str, besides: Sequence[str]) -> None:
  """Gives the flags the values that a run was started with.

  What is given on the command line stays.

  Args:
    logdir: directory of the run.
    besides: flags that stay as they are though they weren't given.

  Raises:
    ValueError: if there is no run, or if its settings are damaged.
  """
  from qdrl_haiku.training import logs

  for name, value in logs.RunDirectory(logdir).settings().items():
    is_known = name in FLAGS and name not in besides
    if is_known and not FLAGS[name].present:
      if not _is_of_kind(FLAGS[name], value):
        raise ValueError(
          f"config.json in {logdir} is damaged: {name} is {value!r}; mend it, "
          f"or give --{name}."
        )
      FLAGS[name].value = value


def _is_of_kind(flag: Any, value: Any) -> bool:
  """Whether a value, as JSON has it, is one that a flag may have."""
  if value is None:
    return flag.default is None
  kinds: dict[str, Any] = {
    "bool": bool, "float": int | float, "int": int, "string": str
  }  # fmt: skip
  kind = kinds.get(flag.flag_type())
  if kind is None:  # Of several strings.
    return isinstance(value, list) and all(isinstance(x, str) for x in value)
  return isinstance(value, kind) and isinstance(value, bool) == (kind is bool)


def run_training(
  setup: Any,
  algorithm: str,
  seeds: Sequence[int],
  *,
  more_settings: Mapping[str, Any] | None = None,
  **run_settings: Any,
) -> str:
  """Trains, and says where the result is.

  Args:
    setup: what the population is composed of.
    algorithm: for the name of the directory.
    seeds: one, or one per member.
    more_settings: what `config.json` is to hold beside the flags.
    **run_settings: what else `training.RunConfig` is to hold.

  Returns:
    The run's directory.

  Raises:
    ValueError: if a setting is not valid.
  """
  import jax

  from qdrl_haiku import training
  from qdrl_haiku.training import hosts

  if FLAGS.logdir:
    learner_flags.refuse_given(["suffix"], "--logdir is the whole name")
  # Of several processes each has a clock of its own.
  default = hosts.text_of_first(_default_logdir(algorithm))
  logdir = FLAGS.logdir or default
  names = [
    flag.name for flag in _launchers_flags()
    if flag.name not in _NOT_REMEMBERED
  ]
  config = training.RunConfig(
    logdir=logdir,
    seeds=tuple(seeds),
    num_timesteps=FLAGS.num_timesteps,
    dry_run=FLAGS.dry_run,
    resume=FLAGS.resume,
    warm_start=FLAGS.warm_start,
    use_tensorboard=FLAGS.use_tensorboard,
    checkpoint_interval=FLAGS.checkpoint_interval,
    max_checkpoints=FLAGS.max_checkpoints,
    checkpoint_replay=FLAGS.checkpoint_replay,
    on_divergence=FLAGS.on_divergence,
    **run_settings,
  )
  if not FLAGS.checkpoint_replay:
    logging.warning(
      "checkpoints are written without replay buffers: a resumed run begins "
      "with empty ones, and learns nothing until they have --min_replay_size "
      "transitions."
    )
  _warn_of_idleness(setup)
  _check_activation()
  is_first = jax.process_index() == 0
  if is_first and not FLAGS.dry_run:
    print(f"writing to {logdir}", flush=True)
  to_go_on = f"go on with --resume --logdir={logdir}"
  if setup.on_host:
    to_go_on = f"begin another run with --warm_start={logdir}"
  settings = {name: getattr(FLAGS, name) for name in names}
  settings |= {"launcher": _name(), "in_effect": _in_effect(setup)}
  settings |= more_settings or {}
  try:
    training.run(setup, config, settings)
  except training.Interrupted as error:
    print(f"{error}; {to_go_on}", file=sys.stderr)
    sys.exit(training.INTERRUPTED)
  except training.Diverged as error:
    print(f"error: {error}", file=sys.stderr)
    sys.exit(1)
  except (MemoryError, OSError) as error:
    if FLAGS.debug:
      raise
    reason = str(error) or "the memory ran out"
    mend = "mend it"
    if jax.process_count() > 1:
      mend += ", unless it is that another process is gone"
    _fail(f"{reason}; what was written before is whole: {mend}, and {to_go_on}")
  except jax.errors.JaxRuntimeError as error:
    if FLAGS.debug or jax.process_count() == 1:
      raise
    reason = str(error).splitlines()[0]
    _fail(
      f"another process is gone or out of reach ({reason}); start all of them "
      f"with --resume --logdir={logdir}"
    )
  if is_first and not FLAGS.dry_run:
    print(f"done: {logdir}")
  return logdir


def _warn_of_idleness(setup: Any) -> None:
  """Says what won't begin before the run's end.

  That's no mistake where a run is to be resumed for longer.

  Args:
    setup: what the population is composed of.
  """
  steps = FLAGS.num_timesteps
  if setup.map_elites is None and steps < FLAGS.min_replay_size:
    logging.warning(
      "nothing will be learned: an agent's %d steps don't reach "
      "--min_replay_size=%d transitions.", steps, FLAGS.min_replay_size,
    )
  if setup.controller and steps <= setup.config.burn_in_period:
    logging.warning(
      "nobody will be replaced who hasn't diverged: --burn_in_period=%d lasts "
      "for all of --num_timesteps=%d.", setup.config.burn_in_period, steps,
    )


def _check_activation() -> None:
  """Refuses weights that were learned for another activation.

  Nothing in a checkpoint tells which one it was.

  Raises:
    ValueError: if --warm_start names a run with another one.
  """
  from qdrl_haiku.training import logs

  if FLAGS.resume or not FLAGS.warm_start:
    return
  try:
    settings = logs.RunDirectory(FLAGS.warm_start).settings()
  except ValueError:
    return  # Training says so, and names the flag.
  theirs = settings.get("activation", FLAGS.activation)
  if theirs != FLAGS.activation:
    raise ValueError(
      f"--warm_start={FLAGS.warm_start} has agents with "
      f"--activation={theirs}, not {FLAGS.activation}; give that."
    )


def _in_effect(setup: Any) -> dict[str, Any]:
  """What holds where flags leave it open, for who reads `config.json`.

  Args:
    setup: what the population is composed of.

  Returns:
    Settings by name, as JSON has them.
  """
  from qdrl_haiku.controllers import lineage

  hyperparams = lineage.named_leaves(setup.learner.hyperparams)
  env = getattr(setup.env, "env", setup.env)  # Of skills.
  backend = getattr(getattr(env, "unwrapped", None), "backend", None)
  return {
    "backend": backend if isinstance(backend, str) else None,
    "episode_length": setup.env.episode_length,
    "fitness": setup.config.fitness,
    "hyperparams": {name: float(x) for name, x in hyperparams.items()},
    "num_eval_episodes": setup.config.num_eval_episodes,
  }


def _fail(message: str) -> NoReturn:
  """Ends the process with one line.

  Args:
    message: what went wrong, and what to do.
  """
  import jax

  # Threads of orbax that are still at it would report the same at length.
  python_logging.disable()
  sys.excepthook = sys.unraisablehook = lambda *_: None
  print(f"error: {message}", file=sys.stderr, flush=True)
  if jax.process_count() > 1:
    # The usual way out would wait for the others.
    os._exit(1)
  sys.exit(1)


def _launchers_flags() -> list[Any]:
  """The flags that the launchers define, without absl's own."""
  by_module = FLAGS.flags_by_module_dict()
  shared = (
    "evaluation_flags", "learner_flags", "pbt_flags", "shared_flags",
    "skill_flags",
  )  # fmt: skip
  own = (sys.argv[0], __name__, *shared)
  return [
    flag
    for module, module_flags in by_module.items()
    if module in own
    for flag in module_flags
  ]


def _default_logdir(algorithm: str) -> str:
  env_name = re.sub("[:/]", "-", FLAGS.env_name)
  time = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
  suffix = f"-{FLAGS.suffix}" if FLAGS.suffix else ""
  return os.path.join("logs", f"{env_name}-{algorithm}-{time}{suffix}")
