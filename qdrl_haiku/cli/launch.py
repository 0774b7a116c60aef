"""What every launcher does with its flags: parse, prepare, complain."""

import atexit
import gc
import logging as python_logging
import os
import pathlib
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from absl import app, flags, logging

from qdrl_haiku.cli import devices

FLAGS = flags.FLAGS

# Before jax is imported: XLA complains at length about each program that it
# reads from the cache. What is an error to us is an exception anyway.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

# Flags that say where a run is, not what it is.
_PLACE = ("compilation_cache_dir", "logdir", "resume", "suffix")
# Flags of this one start, which no run remembers.
NOT_REMEMBERED = ("debug", "dry_run", "preset", *devices.PROCESS_FLAGS)
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
  flags.DEFINE_bool("debug", False, "Shows where an error comes from.")
  flags.DEFINE_string(
    "preset", None, "The flags of a file in launchers/flagfiles, by its name."
  )
  for flag in launchers_flags():
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
    arguments = FLAGS([_as_flagfile(argument) for argument in argv])
    if FLAGS.preset is not None:
      raise ValueError(f"give it as --preset={FLAGS.preset}, in one word")
    return arguments
  except flags.UnrecognizedFlagError as error:
    from qdrl_haiku import names

    known = [flag.name for flag in launchers_flags()]
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


def _as_flagfile(argument: str) -> str:
  """Returns the flagfile for `--preset=name`; else the argument itself.

  Raises:
    ValueError: if there is no such preset.
  """
  match = re.fullmatch("--?preset=(.*)", argument)
  if match is None:
    return argument
  folder = _presets()
  found = sorted(path.stem for path in folder.glob("*.flags"))
  if match[1] not in found:
    from qdrl_haiku import names

    raise ValueError(
      f"{argument} is unknown; {names.nearest(match[1], found)}"
    )
  return f"--flagfile={folder / match[1]}.flags"


def _presets() -> pathlib.Path:
  """Returns where flagfiles are: in the installed package or the repository."""
  package = pathlib.Path(__file__).parents[1]
  installed = package / "presets"
  if installed.is_dir():
    return installed
  return package.parent / "launchers" / "flagfiles"


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


def launcher_name() -> str:
  """Returns the launcher's, such as train_pbt.py, however it was started."""
  stem = os.path.splitext(os.path.basename(sys.argv[0]))[0]
  return stem.removeprefix("qdrl-").replace("-", "_") + ".py"


def _check_launcher() -> None:
  """Refuses to go on with the run of another launcher.

  Raises:
    ValueError: if it is one, or if there is no run.
  """
  from qdrl_haiku.storage.directory import RunDirectory

  ours = launcher_name()
  theirs = RunDirectory(FLAGS.logdir).settings().get("launcher", ours)
  if theirs != ours:
    raise ValueError(
      f"--logdir={FLAGS.logdir} is a run of {theirs}, not {ours}; resume it "
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
  from qdrl_haiku.storage.directory import RunDirectory

  for name, value in RunDirectory(logdir).settings().items():
    is_known = name in FLAGS and name not in besides
    if is_known and not FLAGS[name].present:
      if not _is_of_kind(FLAGS[name], value):
        raise ValueError(
          f"config.json in {logdir} is damaged: {name} is {value!r}; mend it, "
          f"or give --{name}."
        )
      FLAGS[name].value = value


def _is_of_kind(flag: Any, value: Any) -> bool:
  """Returns whether a value, as JSON has it, is one that a flag may have."""
  if value is None:
    return flag.default is None
  kinds: dict[str, Any] = {
    "bool": bool, "float": int | float, "int": int, "string": str
  }  # fmt: skip
  kind = kinds.get(flag.flag_type())
  if kind is None:  # Of several strings.
    return isinstance(value, list) and all(isinstance(x, str) for x in value)
  return isinstance(value, kind) and isinstance(value, bool) == (kind is bool)


def launchers_flags() -> list[Any]:
  """Returns the flags that the launchers define, without absl's own."""
  room = __name__.rpartition(".")[0]
  return [
    flag
    for module, flags_of_it in FLAGS.flags_by_module_dict().items()
    if module.startswith(room)
    for flag in flags_of_it
  ]
