"""What a program is asked for: one frozen value, from whose fields flags are.

A program's flags are a dataclass, composed of those of what it does. absl's
flags are made from its fields, and what was parsed is a value of it. Whoever
decides what was left open makes a new value; nothing is ever written back.
"""

import dataclasses
import inspect
import re
import types
import typing
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Self

from absl import flags as absl_flags


def flag(
  default: Any,
  help_: str,
  *,
  repeatable: bool = False,
  section: str | None = None,
) -> Any:
  """Returns the field of a flag.

  Args:
    default: its value if it isn't given.
    help_: what `--help` says: full sentences that need no other flag's text.
    repeatable: whether each value is given by a flag of its own, instead of
      all by one with commas.
    section: where `--help` lists it, of `help.SECTIONS`; by default the section
      of the class that first declares the flag.
  """
  metadata = {"help": help_, "repeatable": repeatable, "section": section}
  return dataclasses.field(default=default, metadata=metadata)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Flags:
  """What a program is asked for; its own flags are fields of a subclass.

  Attributes:
    given: names of the flags that were given, in flagfiles or otherwise.
    typed: names of those that are on the command line itself.
    section: where `--help` lists the flags that a class declares.
    hidden_sections: those that `--help` leaves out.
    help_note: what `--help` says of them.
  """

  section: ClassVar[str] = "Start"
  hidden_sections: ClassVar[frozenset[str]] = frozenset()
  help_note: ClassVar[str] = ""

  given: frozenset[str] = frozenset()
  typed: frozenset[str] = frozenset()

  preset: str | None = flag(
    None,
    "Name of a file in launchers/flagfiles whose flags are read in its place.",
  )
  debug: bool = flag(
    False, "Whether an error is shown with its traceback instead of one line."
  )

  @classmethod
  def kinds(cls) -> dict[str, type]:
    """Returns the type of each flag's value, by its name: tuple for several."""
    hints = typing.get_type_hints(cls)
    return {
      field.name: _kind(hints[field.name])
      for field in dataclasses.fields(cls)
      if "help" in field.metadata
    }

  @classmethod
  def define(cls) -> None:
    """Makes absl's flags from the fields."""
    kinds = cls.kinds()
    for field in dataclasses.fields(cls):
      if field.name not in kinds:
        continue
      define: Any = {
        bool: absl_flags.DEFINE_bool,
        float: absl_flags.DEFINE_float,
        int: absl_flags.DEFINE_integer,
        str: absl_flags.DEFINE_string,
        tuple: absl_flags.DEFINE_list,
      }[kinds[field.name]]
      if field.metadata["repeatable"]:
        define = absl_flags.DEFINE_multi_string
      default = field.default
      if isinstance(default, tuple):
        default = list(default)
      define(field.name, default, field.metadata["help"])

  @classmethod
  def parsed(cls, arguments: Sequence[str]) -> Self:
    """Returns what absl has parsed.

    Args:
      arguments: of the command line.
    """
    parsed = absl_flags.FLAGS
    names = cls.kinds()
    return cls(
      given=frozenset(name for name in names if parsed[name].present),
      typed=frozenset(name for name in names if _is_typed(name, arguments)),
      **{name: _frozen(parsed[name].value) for name in names},
    )

  def settings(self, besides: Collection[str] = ()) -> dict[str, Any]:
    """Returns the value of each flag by its name, as JSON has it.

    Args:
      besides: names of flags that are left out.
    """
    values = {
      name: getattr(self, name) for name in self.kinds() if name not in besides
    }
    return {
      name: list(value) if isinstance(value, tuple) else value
      for name, value in values.items()
    }

  def with_settings(
    self, settings: Mapping[str, Any], besides: Collection[str], where: str
  ) -> Self:
    """Returns the flags as a run had them; what was given stays.

    Args:
      settings: of the run.
      besides: names of flags that stay as they are though they weren't given.
      where: the settings stand, for the message.

    Raises:
      ValueError: if a setting isn't of its flag's type.
    """
    fields = {field.name: field for field in dataclasses.fields(self)}
    values = {}
    for name, kind in self.kinds().items():
      if name in besides or name in self.given or name not in settings:
        continue
      value = settings[name]
      if not _is_of_kind(value, kind, fields[name].default is None):
        raise ValueError(
          f"{where} is damaged: {name} is {value!r}; mend it, or give --{name}."
        )
      values[name] = _frozen(value)
    return dataclasses.replace(self, **values)

  def text_of(self, name: str) -> str:
    """Returns the value of a flag as it is typed.

    Args:
      name: of the flag.
    """
    value = getattr(self, name)
    return ",".join(value) if isinstance(value, tuple) else str(value)

  def check_choice(self, name: str, choices: Iterable[str]) -> None:
    """Checks that a flag, if it has a value, is one of several words.

    Args:
      name: of the flag.
      choices: the words.

    Raises:
      ValueError: if it is another word.
    """
    from qdrl_haiku import names

    value = getattr(self, name)
    if value is not None and value not in choices:
      raise ValueError(
        f"--{name}={value} is unknown; {names.nearest(value, choices)}"
      )

  def refuse_given(
    self, names: Iterable[str], why: str, choice: str | None = None
  ) -> None:
    """Refuses flags that were given and would have no effect.

    Args:
      names: of the flags.
      why: they have no effect.
      choice: the flag that takes their effect. Where it is on the command line
        itself, what a flagfile says for another choice is overridden, as the
        choice is, and not refused.

    Raises:
      ValueError: if one of them was given.
    """
    given = self.typed if choice in self.typed else self.given
    for name in names:
      if name in given:
        raise ValueError(
          f"--{name}={self.text_of(name)} has no effect: {why}; leave it out."
        )

  def users_function(self, name: str, *arguments: str) -> Any:
    """Returns the function of a user's own that a flag names.

    Args:
      name: of the flag.
      *arguments: what the function is called with.

    Raises:
      ValueError: if there is none, or if it can't be called so.
    """
    from qdrl_haiku import names

    path = getattr(self, name)
    function = names.load_function(path)
    try:
      inspect.signature(function).bind(*arguments)
    except (TypeError, ValueError) as error:
      raise ValueError(
        f"--{name}={path} can't be called with {' and '.join(arguments)} "
        f"({error}); give a function of that."
      ) from error
    return function

  def check_users_result(self, name: str, result: Any, kind: type) -> None:
    """Refuses what a user's own function returned if it's something else.

    Args:
      name: of the flag that names the function.
      result: what it returned.
      kind: what it should be.

    Raises:
      ValueError: if it isn't.
    """
    if not isinstance(result, kind):
      module = ".".join(kind.__module__.split(".")[:2])
      raise ValueError(
        f"--{name}={getattr(self, name)} returned a {type(result).__name__}; "
        f"return a {module}.{kind.__name__}."
      )


def _kind(hint: Any) -> type:
  """Returns the type that a hint means, be it optional or not."""
  if types.NoneType in typing.get_args(hint):
    hint = next(x for x in typing.get_args(hint) if x is not types.NoneType)
  if typing.get_origin(hint) is typing.Literal:
    return str
  return typing.get_origin(hint) or hint


def _frozen(value: Any) -> Any:
  return tuple(value) if isinstance(value, list) else value


def _is_typed(name: str, arguments: Sequence[str]) -> bool:
  """Returns whether a flag is on the command line itself, not in a file."""
  pattern = re.compile(rf"--?(no)?{name}(=.*)?", re.DOTALL)
  return any(pattern.fullmatch(argument) for argument in arguments)


def _is_of_kind(value: Any, kind: type, may_be_none: bool) -> bool:
  """Returns whether a value, as JSON has it, is one that a flag may have."""
  if value is None:
    return may_be_none
  if kind is tuple:
    return isinstance(value, list) and all(isinstance(x, str) for x in value)
  allowed: Any = int | float if kind is float else kind
  is_bool = isinstance(value, bool)
  return isinstance(value, allowed) and is_bool == (kind is bool)
