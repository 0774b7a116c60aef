"""Parses the flags of a program, and turns mistakes into one line."""

import atexit
import dataclasses
import functools
import gc
import logging as python_logging
import pathlib
import re
import sys
from collections.abc import Callable, Mapping, Sequence

from absl import app, flags, logging

from qdrl_haiku import config as config_lib
from qdrl_haiku import names
from qdrl_haiku.cli import flags as flags_lib
from qdrl_haiku.cli.flags import Given
from qdrl_haiku.config import Flag, Settings, setting

# Values to be given to a flag, by absl's name of its type.
_EXPECTED = {"bool": "true or false", "float": "a number", "int": "an integer"}
_HELP = {"--help", "-help", "-h", "-?", "--helpshort", "--helpfull"}


@dataclasses.dataclass(frozen=True)
class ProgramConfig(Settings):
  """Configures what every program has."""

  title = "Program"

  preset: str | None = setting(
    None,
    "The flags of a file in launchers/flagfiles, by its name; like "
    "--flagfile=<file> for one of your own.")
  debug: bool = setting(False, "Whether an error shows where it comes from.")


def launch_main(
  main: Callable[[Given], None], own: Mapping[str, Flag], summary: str,
  renamed: Mapping[str, str] | None = None,
) -> None:
  """Parses flags, calls `main`, and turns a user's mistake into one line.

  `--help` begins with the summary; `renamed` has the program's own names of
  settings, by their names in the package.
  """
  known = dict(own) | config_lib.config_tree_flags(ProgramConfig())
  if _HELP.intersection(sys.argv):
    print(flags_lib.flags_help_text(summary, known.values()))
    return

  def guarded(argv: Sequence[str]) -> None:
    # orbax reports every file that it writes.
    logging.set_verbosity(logging.WARNING)
    # matplotlib reports fonts of an environment that is gone.
    python_logging.getLogger("matplotlib").setLevel(python_logging.ERROR)
    given = flags_lib.parse_flags(known.values(), sys.argv)
    try:
      if len(argv) > 1:
        raise ValueError(
          f"unexpected argument {argv[1]!r}; flags begin with --.")
      main(given)
    except ValueError as error:
      if given.values.get("debug"):
        raise
      message = str(error)
      for name, flag in (renamed or {}).items():
        message = re.sub(rf"\b{name}\b", flag, message)
      print(f"error: {message}", file=sys.stderr)
      sys.exit(2)

  # Tracing makes millions of objects that stay: to look through them for
  # garbage after every 700 new ones takes a fifth of its time.
  gc.set_threshold(100_000)
  # To look through them at the end would take another second or two.
  atexit.register(gc.freeze)
  flags_lib.define_flags(known.values())
  app.run(guarded, flags_parser=functools.partial(
    _parse, known=list(known), renamed=renamed or {}))


def _parse(
  argv: Sequence[str], *, known: Sequence[str], renamed: Mapping[str, str]
) -> list[str]:
  """Parses flags; a wrong one ends the program with one line."""
  try:
    arguments = flags.FLAGS([_as_flagfile(argument) for argument in argv])
    if flags.FLAGS.preset is not None:
      raise ValueError(
        f"give --preset={flags.FLAGS.preset} on the command line, in one word")
    if flags.FLAGS["log_dir"].present:
      # absl's own, of log files that aren't written: --logdir is meant.
      raise flags.UnrecognizedFlagError("log_dir")
    return arguments
  except flags.UnrecognizedFlagError as error:
    fix = names.nearest_name(error.flagname, known)
    if own := renamed.get(error.flagname):
      fix = f"here it is --{own}."
    elif not fix.startswith("did you mean"):
      fix = "--help lists those that there are."
    message = f"--{error.flagname} is no flag of this launcher; {fix}"
  except flags.IllegalFlagValueError as error:
    # The error is like "flag --name=value: reason".
    flag = str(error).removeprefix("flag ").partition(": ")[0]
    kind = flags.FLAGS[flag[2:].partition("=")[0]].flag_type()
    fix = _EXPECTED.get(kind, f"a {kind}")
    message = f"{flag} has a wrong value; give {fix}."
  except (flags.Error, ValueError) as error:
    message = " ".join(str(error).removeprefix("ERROR:: ").split())
    message = f"{message}; see --help."
  print(f"error: {message}", file=sys.stderr)
  sys.exit(2)


def _as_flagfile(argument: str) -> str:
  """Returns the flagfile of `--preset=name`; else the argument itself."""
  match = re.fullmatch("--?preset=(.*)", argument)
  if match is None:
    return argument
  # In the installed package, or else in the repository.
  package = pathlib.Path(__file__).parents[1]
  places = (package / "presets", package.parent / "launchers" / "flagfiles")
  found = {path.stem: path for x in places for path in x.glob("*.flags")}
  if match[1] not in found:
    advice = names.nearest_name(match[1], sorted(found))
    raise ValueError(f"{argument} is unknown; {advice}")
  return f"--flagfile={found[match[1]]}"
