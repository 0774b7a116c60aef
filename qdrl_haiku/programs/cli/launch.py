"""Parses the flags of a program, and turns each mistake into a line."""

import atexit
import dataclasses
import functools
import gc
import logging as python_logging
import pathlib
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence

from absl import app, flags, logging

from qdrl_haiku import checks, names
from qdrl_haiku import config as config_lib
from qdrl_haiku.config import Flag, Settings, setting
from qdrl_haiku.config.settings import NOTHING
from qdrl_haiku.programs.cli import flags as flags_lib
from qdrl_haiku.programs.cli.flags import Given

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
  former: Mapping[str, str] = NOTHING,
) -> None:
  """Parses flags, calls `main`, and turns a user's mistake into one line.

  `--help` begins with the summary; `former` are flags' former names, which are
  understood, with those that they have now.
  """
  known = dict(own) | config_lib.config_tree_flags(ProgramConfig())
  if _HELP.intersection(sys.argv):
    print(flags_lib.flags_help_text(summary, known.values()))
    return

  refused: list[str] = []

  def guarded(argv: Sequence[str]) -> None:
    # orbax reports every file that it writes.
    logging.set_verbosity(logging.WARNING)
    # matplotlib reports fonts of an environment that is gone.
    python_logging.getLogger("matplotlib").setLevel(python_logging.ERROR)
    given = flags_lib.parse_flags(known.values(), argv, refused)
    try:
      main(given)
    except ValueError as error:
      if given.values.get("debug"):
        raise
      for message in checks.refusals_of(error):
        print(f"error: {message}", file=sys.stderr)
      sys.exit(2)

  # Tracing makes millions of objects that stay: to look through them for
  # garbage after every 700 new ones takes a fifth of its time.
  gc.set_threshold(100_000)
  # To look through them at the end would take another second or two.
  atexit.register(gc.freeze)
  flags_lib.define_flags(known.values())
  parse = functools.partial(
    _parse, known=list(known), refused=refused, former=former)
  app.run(guarded, flags_parser=parse)


def _parse(
  argv: Sequence[str], *, known: Sequence[str], refused: list[str],
  former: Mapping[str, str],
) -> list[str]:
  """Parses flags one by one; what is wrong is left out, and in `refused`.

  Returns the command line, its flags by the names that they have now.
  """
  found = flags.FLAGS
  found(argv[:1])  # absl wants to have parsed something.
  typed = [_renamed(word, former) for word in argv]
  try:
    words = found.read_flags_from_files([_as_flagfile(x) for x in typed[1:]])
  except (flags.Error, ValueError) as error:
    refused.append(_say(error))
    return typed
  for flag in _flags_of([_renamed(word, former) for word in words]):
    name = flag[0].lstrip("-").partition("=")[0]
    try:
      if name == "log_dir":
        # absl's own, of log files that aren't written: --logdir is meant.
        raise flags.UnrecognizedFlagError(name)
      if name == "preset":
        value = "=".join(flag).removeprefix("--")
        raise ValueError(f"give --{value} on the command line, in one word")
      for word in found([argv[0], *flag])[1:]:
        refused.append(f"unexpected argument {word!r}; flags begin with --.")
    except flags.UnrecognizedFlagError as error:
      fix = names.nearest_name(error.flagname, known)
      if not fix.startswith("did you mean"):
        fix = "--help lists those that there are."
      refused.append(f"--{error.flagname} is no flag of this launcher; {fix}")
    except flags.IllegalFlagValueError as error:
      # The error is like "flag --name=value: reason".
      text = str(error).removeprefix("flag ").partition(": ")[0]
      kind = found[name.removeprefix("no")].flag_type()
      fix = _EXPECTED.get(kind, f"a {kind}")
      refused.append(f"{text} has a wrong value; give {fix}.")
    except (flags.Error, ValueError) as error:
      refused.append(_say(error))
  return typed


def _renamed(word: str, former: Mapping[str, str]) -> str:
  """Returns a flag by the name that it has now; other words as they are."""
  name, is_, value = word.lstrip("-").partition("=")
  is_former = word.startswith("-") and name in former
  return f"--{former[name]}{is_}{value}" if is_former else word


def _flags_of(words: Sequence[str]) -> Iterator[list[str]]:
  """Yields flags, with a value that is the next word, and words of none."""
  left = list(words)
  while left:
    flag = [left.pop(0)]
    name = flag[0].lstrip("-")
    if name in flags.FLAGS:
      has_value = not flags.FLAGS[name].boolean
    else:
      has_value = "=" not in name and not "".join(left[:1]).startswith("-")
    if has_value and left:
      flag.append(left.pop(0))
    yield flag


def _say(error: Exception) -> str:
  """Returns what absl says, in one line."""
  message = " ".join(str(error).removeprefix("ERROR:: ").split())
  return f"{message}; see --help."


def _as_flagfile(argument: str) -> str:
  """Returns the flagfile of `--preset=name`; else the argument itself."""
  match = re.fullmatch("--?preset=(.*)", argument)
  if match is None:
    return argument
  # In the installed package, or else in the repository.
  package = pathlib.Path(__file__).parents[2]
  places = (package / "presets", package.parent / "launchers" / "flagfiles")
  found = {path.stem: path for x in places for path in x.glob("*.flags")}
  if match[1] not in found:
    advice = names.nearest_name(match[1], sorted(found))
    raise ValueError(f"{argument} is unknown; {advice}")
  return f"--flagfile={found[match[1]]}"
