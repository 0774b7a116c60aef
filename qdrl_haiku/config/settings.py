"""Declares settings; flags, checks and `config.json` follow from that.

A setting is a field of a frozen dataclass that stands beside what it
configures. A configuration is a tree of such dataclasses: a field's value may
be another one (a section), or one of several by name (a choice). Names are
unique in a tree, but for those that the kinds of a choice share.
"""

import contextlib
import dataclasses
import inspect
import math
import numbers
import types
import typing
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple, Self, TypeVar

from qdrl_haiku import checks, names
from qdrl_haiku.types import Record

Values = Mapping[str, Any]
"""Values of settings by name, as a command line or a JSON file has them."""
Changes = Record
"""Values that are being collected."""

T = TypeVar("T")
_DECLARATION = "declaration"
NOTHING: Values = types.MappingProxyType({})


class Declaration(NamedTuple):
  """Describes one setting."""

  help: str  # A sentence or two for `--help`.
  low: float = -math.inf  # The least value; of a tuple, of each element.
  # The largest value, or element; of integers 2^31 - 1 by default.
  high: float = math.inf
  above: float = -math.inf  # What a value, or an element, has to exceed.
  # All words that the value may be; empty for any.
  choices: tuple[str, ...] = ()
  # Settings of the same class, with their values with which it has an effect.
  only: Mapping[str, tuple[object, ...]] = NOTHING
  # A part, as the root's `missing` names it, without which it has no effect.
  needs: str | None = None
  may_change: bool = False  # Whether a resumed run may have another value.
  # The name in `config.json` and on command lines; None for the field's own, ""
  # to leave the setting out of both, since it follows from others.
  flag: str | None = None
  offered: bool = True  # Whether command lines have it.
  repeatable: bool = False  # Whether each element has a flag of its own.
  # Whether a whole configuration may leave it None, to fill it in when built.
  open: bool = False
  title: str = ""  # The section of `--help`, "" for that of the configuration.
  # Of a choice, the configurations by name.
  kinds: Mapping[str, "Settings"] = NOTHING
  # Of a mapping from names to numbers, the help of each known name.
  keys: Mapping[str, str] = NOTHING

  @classmethod
  def of(cls, field: dataclasses.Field) -> "Declaration | None":
    """Returns a field's declaration; None where a configuration is nested."""
    return field.metadata.get(_DECLARATION)

  def unmet(self, values: Values) -> str | None:
    """Returns the setting whose value makes this one ineffective, if any."""
    unmet = (x for x, of in self.only.items() if values[x] not in of)
    return next(unmet, None)


def setting(default: Any, help: str, **declared: Any) -> Any:
  """Declares a setting, a field of a frozen dataclass.

  Args:
    default: its default. That of a choice is the name of one of its `kinds`; a
      user may name a "package.module:function" instead, which becomes a
      `UsersOwn`.
    help: a sentence or two for `--help`.
    **declared: more of a `Declaration`, by name.
  """
  declaration = Declaration(help, **declared)
  metadata = {_DECLARATION: declaration}
  if declaration.kinds:
    default = declaration.kinds[default]
  if isinstance(default, dict):
    return dataclasses.field(default_factory=default.copy, metadata=metadata)
  return dataclasses.field(default=default, metadata=metadata)


class Missing(NamedTuple):
  """Says why a configuration lacks a part."""

  why: str  # A clause, such as "--emitter=ga trains no members".
  by: tuple[str, ...]  # The settings by which it lacks the part.


# A noun for values of each type, and the class that values need.
_TYPES: dict[type, tuple[str, type]] = {
  bool: ("true or false", bool), int: ("an integer", numbers.Integral),
  float: ("a number", numbers.Real), str: ("a word", str),
  tuple: ("a tuple", tuple)}


class Kind(NamedTuple):
  """The type of a setting, or of a tuple's elements; whether None will do."""

  base: type
  element: type
  optional: bool

  @classmethod
  def of(cls, hint: type) -> Self:
    """Returns the kind of a hint, as `float | None` or `tuple[int, ...]`."""
    optional = types.NoneType in typing.get_args(hint)
    if optional:
      hint = typing.get_args(hint)[0]
    if typing.get_origin(hint) is tuple:
      return cls(tuple, typing.get_args(hint)[0], optional)
    return cls(hint, hint, optional)

  def parse(self, value: Any) -> object:
    """Returns a command line's or a JSON file's value as a configuration's."""
    if self.base is tuple and isinstance(value, list | tuple):
      return tuple(_parse(x, self.element) for x in value)
    return _parse(value, self.base)


def _parse(value: Any, kind: type) -> object:
  """Returns a text as the number that it says, and integers as floats."""
  if isinstance(value, bool) or kind not in (int, float):
    return value
  if isinstance(value, str) or (isinstance(value, int) and kind is float):
    with contextlib.suppress(ValueError):
      return kind(value)
  return value


def _check_type(name: str, value: Any, kind: type) -> None:
  """Refuses a value of another type; true and false are no numbers."""
  noun, allowed = _TYPES[kind]
  if not isinstance(value, allowed) or isinstance(value, bool) != (
    kind is bool
  ):
    raise ValueError(f"{name} is {value!r}; give {noun}.")


def setting_kinds(owner: type["Settings"]) -> Mapping[str, Kind]:
  """Returns the kind of each field of a class of configurations."""
  hints = typing.get_type_hints(owner)
  found = {}
  for field in dataclasses.fields(owner):
    kind, declared = Kind.of(hints[field.name]), Declaration.of(field)
    is_open = declared is not None and declared.open
    found[field.name] = kind._replace(optional=kind.optional or is_open)
  return found


@dataclasses.dataclass(frozen=True)
class Settings:
  """The base of configurations, which checks their values when they are made.

  The class attribute `title` is that of the settings in `--help`.

  Raises:
    ValueError: if a value is out of its range or has no effect beside the
      others, naming the setting, the value and the fix.
  """

  title: ClassVar[str] = "Settings"

  def __post_init__(self) -> None:
    known = setting_kinds(type(self))
    with checks.Refusals() as refusals:
      for field in dataclasses.fields(self):
        with refusals.noted():
          self._check_field(field, known[field.name])

  def _check_field(self, field: dataclasses.Field, kind: Kind) -> None:
    """Refuses a value that makes no sense, or has no effect."""
    declared, value = Declaration.of(field), getattr(self, field.name)
    _check_class(field.name, value, declared, kind)
    if declared is None:
      return
    _check(field.name, value, declared, kind)
    by = declared.unmet(vars(self))
    if by is not None and value != field.default:
      raise ValueError(
        f"{field.name}={value!r} has no effect: {by} is "
        f"{getattr(self, by)!r}; leave it out.")

  def missing(self) -> Mapping[str, Missing]:
    """Returns the parts that a whole configuration lacks, by name."""
    return {}


@dataclasses.dataclass(frozen=True)
class UsersOwn(Settings):
  """Names a function of the user's."""

  path: str  # "package.module:function", see `names.load_named_function`.

  def call(self, flag: str, kind: type[T], **arguments: object) -> T:
    """Calls the function, whose arguments may have other names.

    Args:
      flag: that names the function, for messages.
      kind: the type of what it has to return.
      **arguments: what it gets, in this order.

    Raises:
      ValueError: if there is no such function, if it can't be called so, or if
        it returns another type.
    """
    function = names.load_named_function(self.path)
    try:
      inspect.signature(function).bind(*arguments.values())
    except (TypeError, ValueError) as error:
      raise ValueError(
        f"--{flag}={self.path} can't be called with {' and '.join(arguments)} "
        f"({error}); give a function of that.") from error
    result = function(*arguments.values())
    if not isinstance(result, kind):
      module = ".".join(kind.__module__.split(".")[:2])
      raise ValueError(
        f"--{flag}={self.path} returned a {type(result).__name__}; return a "
        f"{module}.{kind.__name__}.")
    return result


def _check_class(
  name: str, value: Any, declared: Declaration | None, kind: Kind
) -> None:
  """Refuses a section or a choice that is no configuration of its classes."""
  if declared is None:
    # Or of a class that theirs extends.
    allowed = [kind.base]
    fits = isinstance(value, kind.base) or issubclass(kind.base, type(value))
  else:
    allowed = [*map(type, declared.kinds.values()), UsersOwn]
    fits = not declared.kinds or type(value) in allowed
  if not fits and not (value is None and kind.optional):
    classes = " or ".join(x.__name__ for x in allowed)
    raise ValueError(f"{name} is {value!r}; give {classes}(...).")


def _check(name: str, value: Any, declared: Declaration, kind: Kind) -> None:
  """Refuses a value of another type, out of its range, or no known word."""
  if declared.kinds or declared.keys or (value is None and kind.optional):
    return
  _check_type(name, value, kind.base)
  for x in value if kind.base is tuple else (value,):
    _check_type(name, x, kind.element)
    if declared.choices and x not in declared.choices:
      raise ValueError(
        f"{name}={x!r} is unknown; {names.nearest_name(x, declared.choices)}")
    if kind.element not in (int, float):
      continue
    wrong = _violation(x, declared, kind.element)
    if wrong is not None:
      raise ValueError(f"{name} must be {wrong}, got {x}.")


def _violation(x: float, declared: Declaration, kind: type) -> str | None:
  """Returns the words for the bound that a number violates, if it does."""
  high = declared.high
  if kind is int and math.isinf(high):
    high = checks.LARGEST
  if declared.low > -math.inf and not x >= declared.low:
    return f"at least {_text(declared.low)}"
  if declared.above > -math.inf and not x > declared.above:
    return f"above {_text(declared.above)}"
  if high < math.inf and not x <= high:
    return f"at most {_text(high)}"
  if not math.isfinite(x):
    return "finite"
  if kind is float and not checks.fits_float32(x):
    return (
      f"0 or of a magnitude from {checks.SMALLEST_FLOAT:g} to "
      f"{checks.LARGEST_FLOAT:g}, as float32 holds it")
  return None


def _text(bound: float) -> str:
  """Returns a bound as people write it."""
  return str(bound) if isinstance(bound, int) else f"{bound:g}"
