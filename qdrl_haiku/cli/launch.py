"""What every launcher does with its flags: parse, prepare, complain."""

import atexit
import functools
import gc
import logging as python_logging
import os
import pathlib
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from absl import app, flags, logging

from qdrl_haiku.cli import devices
from qdrl_haiku.cli.flags import Flags
from qdrl_haiku.cli.shared_flags import TrainingFlags

_F = TypeVar("_F", bound=Flags)
_T = TypeVar("_T", bound=TrainingFlags)
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
  main: Callable[[_F], None],
  kind: type[_F],
  flag_names: Mapping[str, str] | None = None,
) -> None:
  """Parses flags, calls `main`, and turns a user's mistake into one line.

  Args:
    main: of a launcher; it's called with its flags.
    kind: of them.
    flag_names: what the launcher's flags call settings that have another name
      in the package, for messages.
  """

  def guarded(argv: Sequence[str]) -> None:
    # orbax reports every file that it writes.
    logging.set_verbosity(logging.WARNING)
    # matplotlib reports fonts of an environment that is gone.
    python_logging.getLogger("matplotlib").setLevel(python_logging.ERROR)
    given = kind.parsed(sys.argv)
    try:
      if len(argv) > 1:
        raise ValueError(
          f"unexpected argument {argv[1]!r}; flags begin with --."
        )
      main(given)
    except ValueError as error:
      if given.debug:
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
  kind.define()
  known = list(kind.kinds())
  for name in known:
    # So that --help lists it.
    flags.FLAGS.register_key_flag_for_module(sys.argv[0], flags.FLAGS[name])
  app.run(guarded, flags_parser=functools.partial(_parse, known=known))


def _parse(argv: Sequence[str], *, known: Sequence[str]) -> list[str]:
  """Parses flags; a wrong one ends the launcher with one line.

  Args:
    argv: the command line.
    known: names of the launcher's flags.

  Returns:
    What is left of it.

  Raises:
    SystemExit: if a flag isn't known, or its value isn't of its type.
  """
  try:
    arguments = flags.FLAGS([_as_flagfile(argument) for argument in argv])
    if flags.FLAGS.preset is not None:
      raise ValueError(f"give it as --preset={flags.FLAGS.preset}, in one word")
    return arguments
  except flags.UnrecognizedFlagError as error:
    from qdrl_haiku import names

    fix = names.nearest(error.flagname, known)
    if not fix.startswith("did you mean"):
      fix = "--help lists those that there are."
    message = f"--{error.flagname} is no flag of this launcher; {fix}"
  except flags.IllegalFlagValueError as error:
    # Of the form "flag --name=value: reason".
    flag = str(error).removeprefix("flag ").partition(": ")[0]
    kind = flags.FLAGS[flag[2:].partition("=")[0]].flag_type()
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


def prepare(given: _T) -> _T:
  """Does what each training launcher begins with.

  Args:
    given: its flags.

  Returns:
    Those of the run, which is another's if it's to be resumed.

  Raises:
    ValueError: if there is no run to be resumed by this launcher.
  """
  if given.resume:
    if not given.logdir:
      raise ValueError("--resume needs --logdir: which run is to go on?")
    _check_launcher(given.logdir)
    given = with_settings_of(given, given.logdir, besides=_PLACE)
  devices.prepare_jax(given)
  return given


def launcher_name() -> str:
  """Returns the launcher's, such as train_pbt.py, however it was started."""
  stem = os.path.splitext(os.path.basename(sys.argv[0]))[0]
  return stem.removeprefix("qdrl-").replace("-", "_") + ".py"


def _check_launcher(logdir: str) -> None:
  """Refuses to go on with the run of another launcher.

  Raises:
    ValueError: if it is one, or if there is no run.
  """
  from qdrl_haiku.storage.directory import RunDirectory

  ours = launcher_name()
  theirs = RunDirectory(logdir).settings().get("launcher", ours)
  if theirs != ours:
    raise ValueError(
      f"--logdir={logdir} is a run of {theirs}, not {ours}; resume it with "
      "that launcher."
    )


def with_settings_of(given: _F, logdir: str, besides: Sequence[str]) -> _F:
  """Returns flags with the values that a run was started with.

  Args:
    given: the flags; what was given stays.
    logdir: directory of the run.
    besides: flags that stay as they are though they weren't given.

  Raises:
    ValueError: if there is no run, or if its settings are damaged.
  """
  from qdrl_haiku.storage.directory import RunDirectory

  settings = RunDirectory(logdir).settings()
  return given.with_settings(settings, besides, f"config.json in {logdir}")


def refuse_other_settings(
  given: Flags, logdir: str, names: Sequence[str]
) -> None:
  """Refuses flags that say of a run's agents what they aren't.

  Args:
    given: the flags.
    logdir: directory of the run.
    names: of flags that have to be as the run had them.

  Raises:
    ValueError: if there is no run, or if one was given with another value.
  """
  from qdrl_haiku.storage.directory import RunDirectory

  settings = type(given)().settings() | RunDirectory(logdir).settings()
  for name in names:
    if name in given.given and given.settings()[name] != settings[name]:
      raise ValueError(
        f"--{name}={given.text_of(name)}, but the agents in {logdir} have "
        f"{settings[name]}, and compute something else otherwise; leave it out."
      )
