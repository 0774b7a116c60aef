"""Parses the flags of a program, and turns each mistake into a line."""

import atexit
import dataclasses
import functools
import gc
import logging as python_logging
import os
import pathlib
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeVar

from absl import app, flags, logging

from qdrl_haiku import checks, names
from qdrl_haiku import config as config_lib
from qdrl_haiku.config import Flag, Settings, Values, setting
from qdrl_haiku.config.settings import NOTHING

# Values to be given to a flag, by absl's name of its type.
_EXPECTED = {"bool": "true or false", "float": "a number", "int": "an integer"}
_HELP = {"--help", "-help", "-h", "-?", "--helpshort", "--helpfull"}
_S = TypeVar("_S", bound=Settings)
_DEFINE: dict[type, Callable[..., object]] = {
  bool: flags.DEFINE_bool, float: flags.DEFINE_float, int: flags.DEFINE_integer,
  str: flags.DEFINE_string, tuple: flags.DEFINE_list}
_WIDTH = 80


class Given(NamedTuple):
  """Holds what a command line gives."""

  values: Values  # Of the flags that were given, in flagfiles or otherwise.
  typed: frozenset[str]  # The flags that stand on the command line itself.
  # What is wrong with other flags; `fill` raises it.
  refused: tuple[str, ...] = ()

  def only(self, names: Iterable[str]) -> "Given":
    """Returns the part of it that belongs to flags of given names."""
    known = set(names)
    values = {name: x for name, x in self.values.items() if name in known}
    return Given(values, self.typed & known, self.refused)

  def fill(self, config: _S) -> _S:
    """Returns a configuration with the values that its flags were given.

    Raises:
      ValueError: if something is refused, of other flags' too.
    """
    own = self.only(config_lib.config_tree_flags(config))
    with checks.Refusals(self.refused):
      return config_lib.replace_in_config_tree(
        config, own.values, own.strictly_typed)

  @property
  def strictly_typed(self) -> frozenset[str] | None:
    """The flags that must have an effect; None if others are refused."""
    return None if self.refused else self.typed


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

  Args:
    main: what the program does with what the command line gives.
    own: the program's flags by name, beside those that all programs have.
    summary: with which `--help` begins.
    former: flags' former names, which are understood, with those of today.
  """
  known = dict(own) | config_lib.config_tree_flags(ProgramConfig())
  if _HELP.intersection(sys.argv):
    print(flags_help_text(summary, known.values()))
    return

  refused: list[str] = []

  def guarded(argv: Sequence[str]) -> None:
    # orbax reports every file that it writes.
    logging.set_verbosity(logging.WARNING)
    # matplotlib reports fonts of an environment that is gone.
    python_logging.getLogger("matplotlib").setLevel(python_logging.ERROR)
    given = parse_flags(known, argv, refused)
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
  define_flags(known.values())
  parse = functools.partial(
    _parse, known=list(known), refused=refused, former=former)
  app.run(guarded, flags_parser=parse)


def _parse(
  argv: Sequence[str], *, known: Sequence[str], refused: list[str],
  former: Mapping[str, str],
) -> list[str]:
  """Parses flags, or refuses them; returns them by the names they have now."""
  found = flags.FLAGS
  found(argv[:1])  # absl wants to have parsed something.
  typed = [_renamed(word, former) for word in argv]
  try:
    words = found.read_flags_from_files([_find_preset(x) for x in typed[1:]])
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
        raise ValueError(
          f"--{value}: write it as --preset=name, on the command line")
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


def subprocess_launcher(launcher: str) -> str:
  """Returns the path of a launcher beside this one, as Python runs it."""
  folder, program = os.path.split(sys.argv[0])
  if program.endswith(".py"):
    return os.path.join(folder, f"{launcher}.py")
  # On Windows a program is an archive too, which has its script.
  ending = ".exe" if sys.platform == "win32" else ""
  return os.path.join(folder, f"qdrl-{launcher.replace('_', '-')}{ending}")


def _find_preset(argument: str) -> str:
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


def define_flags(known: Iterable[Flag]) -> None:
  """Defines absl's flags; their defaults are those of the settings."""
  for flag in known:
    make = _DEFINE[flag.kind.base]
    if flag.declared.repeatable:
      make = flags.DEFINE_multi_string
    make(flag.name, None, flag.declared.help)


def parse_flags(
  names: Iterable[str], arguments: Sequence[str], refused: Iterable[str] = ()
) -> Given:
  """Returns what absl has parsed of a command line.

  `names` are those of the flags, `arguments` what was typed, and `refused` what
  is wrong with other flags.
  """
  found = {name: flags.FLAGS[name] for name in names}
  # The others stand in flagfiles.
  typed = {x.partition("=")[0].lstrip("-") for x in arguments}
  typed |= {name.removeprefix("no") for name in typed}
  return Given(
    {name: flag.value for name, flag in found.items() if flag.present},
    frozenset(typed & found.keys()), tuple(refused))


def flags_help_text(summary: str, known: Iterable[Flag]) -> str:
  """Returns what `--help` prints: a summary, and the flags in sections."""
  sections: dict[str, list[Flag]] = {}
  for flag in known:
    sections.setdefault(flag.section, []).append(flag)
  lines = [summary]
  for title, members in sections.items():
    lines += ["", f"{title}:"]
    for flag in members:
      lines += textwrap.wrap(
        f"--{_signature(flag)}: {flag.declared.help}", _WIDTH,
        initial_indent="  ", subsequent_indent=" " * 6, break_on_hyphens=False)
  lines += [
    "",
    "Flags may stand in files, --flagfile=<file>; of two values the later "
    "counts."]
  return "\n".join(lines)


def _signature(flag: Flag) -> str:
  """Returns a flag as `--help` shows it, with its default."""
  name = f"[no]{flag.name}" if flag.kind.base is bool else flag.name
  if flag.default in (None, "", ()):
    return name
  text = flag.text(flag.default).partition("=")[2]
  return f"{name}={text.lower() if flag.kind.base is bool else text}"
