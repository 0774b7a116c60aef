"""absl's flags of declared settings: definition, parsing and `--help`."""

import textwrap
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, TypeVar

from absl import flags as absl_flags

from qdrl_haiku import checks
from qdrl_haiku import config as config_lib
from qdrl_haiku.config import Flag, Settings, Values

_S = TypeVar("_S", bound=Settings)
_DEFINE: dict[type, Callable[..., object]] = {
  bool: absl_flags.DEFINE_bool,
  float: absl_flags.DEFINE_float,
  int: absl_flags.DEFINE_integer,
  str: absl_flags.DEFINE_string,
  tuple: absl_flags.DEFINE_list}
_WIDTH = 80


class Given(NamedTuple):
  """Holds what a command line gives."""

  values: Values  # Of the flags that were given, in flagfiles or otherwise.
  typed: frozenset[str]  # The flags that stand on the command line itself.
  # What is wrong with other flags; `fill` raises it.
  refused: tuple[str, ...] = ()

  def only(self, names: Iterable[str]) -> "Given":
    """Returns what the flags of some names were given."""
    known = set(names)
    values = {name: x for name, x in self.values.items() if name in known}
    return Given(values, self.typed & known, self.refused)

  def fill(self, config: _S) -> _S:
    """Returns a configuration with what its flags were given.

    Raises:
      ValueError: if something is refused, of other flags' too.
    """
    own = self.only(config_lib.config_tree_flags(config))
    with checks.Refusals(self.refused):
      return config_lib.replace_in_config_tree(
        config, own.values, own.strictly_typed)

  @property
  def strictly_typed(self) -> frozenset[str] | None:
    """The flags that must have an effect; None if others are wrong.

    Without those they may seem to have none.
    """
    return None if self.refused else self.typed


def define_flags(flags: Iterable[Flag]) -> None:
  """Defines absl's flags; their defaults are those of the settings."""
  for flag in flags:
    make = _DEFINE[flag.kind.base]
    if flag.declared.repeatable:
      make = absl_flags.DEFINE_multi_string
    make(flag.name, None, flag.declared.help)


def parse_flags(
  flags: Iterable[Flag], arguments: Sequence[str],
  refused: Iterable[str] = (),
) -> Given:
  """Returns what absl has parsed of the arguments of a command line."""
  found = absl_flags.FLAGS
  names = [flag.name for flag in flags]
  values = {name: found[name].value for name in names if found[name].present}
  # The others stand in flagfiles.
  typed = {x.partition("=")[0].lstrip("-") for x in arguments}
  return Given(
    values, frozenset(name for name in names if {name, f"no{name}"} & typed),
    tuple(refused))


def flags_help_text(summary: str, flags: Iterable[Flag]) -> str:
  """Returns what `--help` prints: a summary, and the flags in sections."""
  sections: dict[str, list[Flag]] = {}
  for flag in flags:
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
