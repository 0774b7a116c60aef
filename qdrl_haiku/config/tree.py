"""Walks trees of settings: their flags, their values, and changes of them."""

import contextlib
import dataclasses
from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

import numpy as np

from qdrl_haiku import checks, names
from qdrl_haiku.config.settings import (
  NOTHING,
  Changes,
  Declaration,
  Kind,
  Missing,
  Settings,
  UsersOwn,
  Values,
  setting_kinds,
)

S = TypeVar("S", bound=Settings)


class Flag(NamedTuple):
  """Describes a setting as a command line and `config.json` have it."""

  name: str  # Without dashes.
  kind: Kind  # Of its values.
  default: object  # Its value where it isn't given.
  declared: Declaration
  section: str  # The title under which `--help` lists it.

  def text(self, value: object) -> str:
    """Returns the flag with a value, as a user types it."""
    if isinstance(value, list | tuple):
      value = ",".join(map(str, value))
    return f"--{self.name}={value}"


class _Node(NamedTuple):
  """Holds a field of a configuration; `declared` is None for a section."""

  field: dataclasses.Field
  flag: str
  declared: Declaration | None
  value: Any

  @property
  def default(self) -> Any:
    """The default of the setting's class, in whatever configuration it is."""
    made = self.field.default_factory
    return self.field.default if made is dataclasses.MISSING else made()

  def flags(self, owner: type[Settings]) -> Iterator[Flag]:
    """Yields the setting's own flags, and those of all its kinds."""
    declared, value = self.declared, self.value
    if declared is None:
      yield from config_tree_flags(value).values()
      return
    title = declared.title or owner.title
    kind = setting_kinds(owner)[self.field.name]
    if declared.keys:
      for key, text in declared.keys.items():
        of_key = declared._replace(help=text, keys=NOTHING)
        yield Flag(key, Kind(float, float, True), None, of_key, title)
      kind, value = Kind(tuple, str, False), ()
    elif declared.kinds:
      kind, value = Kind(str, str, False), _kind_name(declared, value)
    if self.flag:
      yield Flag(self.flag, kind, value, declared, title)
    for config in declared.kinds.values():
      yield from config_tree_flags(config).values()


def _nodes(config: Settings) -> Iterator[_Node]:
  """Yields the sections and declared fields that a configuration has."""
  for field in dataclasses.fields(config):
    value, declared = getattr(config, field.name), Declaration.of(field)
    if declared is None:
      if isinstance(value, Settings):
        yield _Node(field, "", None, value)
    elif not (declared.kinds and value is None):
      name = field.name if declared.flag is None else declared.flag
      yield _Node(field, name, declared, value)


def config_tree_flags(config: Settings) -> dict[str, Flag]:
  """Returns the flags of all settings in a tree, and of all kinds, by name.

  They are in the order of declaration; defaults are the tree's values.
  """
  found: dict[str, Flag] = {}
  for node in _nodes(config):
    for flag in node.flags(type(config)):
      found.setdefault(flag.name, flag)
  return found


def _kind_name(declared: Declaration, value: Settings) -> str:
  """Returns the name of a choice's value, with any settings."""
  if isinstance(value, UsersOwn):
    return value.path
  return next(
    name for name, kind in declared.kinds.items() if type(kind) is type(value))


def config_tree_values(config: Settings) -> Changes:
  """Returns the values of all settings that a configuration has, by flag.

  They are as JSON has them. A hyperparameter that isn't given is None.
  """
  found: Changes = {}
  for node in _nodes(config):
    declared, value = node.declared, node.value
    if declared is None:
      found |= config_tree_values(value)
    elif declared.keys:
      found |= {key: _plain(value.get(key)) for key in declared.keys}
      found[node.flag] = [
        f"{key}={x}" for key, x in value.items() if key not in declared.keys]
    elif declared.kinds:
      found |= config_tree_values(value)
      found[node.flag] = _kind_name(declared, value)
    elif node.flag:
      found[node.flag] = _plain(value)
  return found


def _plain(value: object) -> object:
  """Returns a setting's value as JSON has it."""
  if isinstance(value, tuple):
    return [_plain(x) for x in value]
  return value.item() if isinstance(value, np.generic) else value


def replace_in_config_tree(
  config: S, given: Values, typed: Collection[str] | None = None
) -> S:
  """Returns a configuration with the values that flags were given.

  Args:
    config: the root, with the defaults.
    given: values by flag, as a command line or a JSON file has them.
    typed: flags of the command line itself, which must have an effect, while
      those of a flagfile need not; None if none has to, as of `config.json`.

  Raises:
    ValueError: if values are wrong or have no effect.
  """
  known, met = config_tree_flags(config), _Met()
  with met.refusals as refusals:
    result = _replaced(config, given, met)
    missing = result.missing()
    result = _reset(result, missing)
    if typed is None:
      return result
    for name in given:
      reason = met.without.get(name)
      if name in met.used:
        reason = missing.get(known[name].declared.needs or "")
      # What follows from a wrong value says nothing.
      if reason is None or met.wrong & {name, *reason.by}:
        continue
      if name in typed or not any(by in typed for by in reason.by):
        refusals.refuse(
          f"{known[name].text(given[name])} has no effect: {reason.why}; "
          "leave it out.")
  return result


@dataclasses.dataclass
class _Met:
  """Holds what was met when values were replaced."""

  used: set[str] = dataclasses.field(default_factory=set)  # These take effect.
  # Why others don't.
  without: dict[str, Missing] = dataclasses.field(default_factory=dict)
  wrong: set[str] = dataclasses.field(default_factory=set)
  refusals: checks.Refusals = dataclasses.field(default_factory=checks.Refusals)

  @contextlib.contextmanager
  def refused(self, flag: str) -> Iterator[None]:
    """Notes a flag that is refused inside the `with`."""
    try:
      yield
    except ValueError as error:
      self.refusals.note(error)
      self.wrong.add(flag)


def _replaced(config: S, given: Values, met: _Met) -> S:
  """Replaces values in one configuration and those below it."""
  changes: Changes = {}
  known = setting_kinds(type(config))
  for node in _nodes(config):
    name, declared, flag = node.field.name, node.declared, node.flag
    if declared is None:
      changes[name] = _replaced(node.value, given, met)
    elif declared.keys:
      met.used.update((*declared.keys, flag))
      with met.refused(flag):
        changes[name] = dict(node.value) | _numbers(declared, flag, given)
    elif declared.kinds:
      changes[name] = _replaced_choice(node, declared, given, met)
    elif flag in given and flag:
      met.used.add(flag)
      changes[name] = known[name].parse(given[flag])
  after = vars(config) | changes
  for node in _nodes(config):
    if node.declared and (by := node.declared.unmet(after)) is not None:
      changes[node.field.name] = node.field.default
      met.used.discard(node.flag)
      met.without[node.flag] = Missing(f"--{by}={after[by]}", (by,))
  return _made(config, changes, met)


def _replaced_choice(
  node: _Node, declared: Declaration, given: Values, met: _Met
) -> Settings:
  """Returns the kind that a flag names, with what its own flags were given."""
  kind = node.value
  met.used.add(node.flag)
  with met.refused(node.flag):
    kind = _chosen(node, declared, given)
  why = f"--{node.flag}={_kind_name(declared, kind)} has no such setting"
  kind = _replaced(kind, given, met)
  for other in declared.kinds.values():
    for absent in config_tree_flags(other):
      met.without.setdefault(absent, Missing(why, (node.flag,)))
  return kind


def _made(config: S, changes: Changes, met: _Met) -> S:
  """Changes a configuration; what is refused stays as it was."""
  try:
    return dataclasses.replace(config, **changes)
  except ValueError as error:
    met.refusals.note(error)
  right = {name: x for name, x in changes.items() if _fits(config, {name: x})}
  if right == changes or not _fits(config, right):  # Not beside each other.
    right = {name: x for name, x in right.items() if isinstance(x, Settings)}
  wrong = changes.keys() - right.keys()
  met.wrong |= {x.flag for x in _nodes(config) if x.field.name in wrong}
  return dataclasses.replace(config, **right)


def _fits(config: Settings, changes: Changes) -> bool:
  """Returns whether a configuration can have other values."""
  try:
    dataclasses.replace(config, **changes)
  except ValueError:
    return False
  return True


def _chosen(node: _Node, declared: Declaration, given: Values) -> Settings:
  """Returns the kind of a choice that a flag names."""
  known = declared.kinds
  name = given.get(node.flag)
  # Named again, it keeps its settings.
  if name is None or name == _kind_name(declared, node.value):
    return node.value
  if name in known:
    return known[name]
  if ":" in name:
    return UsersOwn(name)
  raise ValueError(
    f"--{node.flag}={name} is unknown; {names.nearest_name(name, known)} Your "
    "own is given as 'package.module:function'.")


def _numbers(
  declared: Declaration, flag: str, given: Values
) -> dict[str, float]:
  """Returns the numbers by name that flags of a mapping were given."""
  known = {x: given.get(x) for x in declared.keys}
  found = {x: float(value) for x, value in known.items() if value is not None}
  for text in given.get(flag, ()):
    key, _, value = text.partition("=")
    if key in declared.keys:
      raise ValueError(
        f"--{flag}={text} is for a name without a flag of its own; give "
        f"--{key}={value}.")
    try:
      found[key] = float(value)
    except ValueError:
      raise ValueError(
        f"--{flag}={text} is not of the form name=value; give it like "
        "speed=0.01.") from None
  return found


def _reset(config: S, missing: Mapping[str, Missing]) -> S:
  """Gives the settings that need a missing part their classes' defaults."""
  changes: Changes = {}
  for node in _nodes(config):
    if node.declared and node.declared.needs in missing:
      changes[node.field.name] = node.default
    elif isinstance(node.value, Settings):
      changes[node.field.name] = _reset(node.value, missing)
  return dataclasses.replace(config, **changes)


def check_config_tree(
  config: Settings, missing: Mapping[str, Missing] | None = None
) -> None:
  """Refuses values that need a part which the whole configuration lacks.

  Those at their defaults do no harm. `missing` are the root's own by default.
  """
  missing = config.missing() if missing is None else missing
  with checks.Refusals() as refusals:
    for node in _nodes(config):
      value, text = node.value, repr(node.value)
      reason = missing.get((node.declared and node.declared.needs) or "")
      changed = value != node.default
      if isinstance(value, Settings):
        with refusals.noted():
          check_config_tree(value, missing)
        # Its settings have been looked at one by one.
        changed = type(value) is not type(node.default)
        text = f"{type(value).__name__}(...)"
      if reason is not None and changed:
        refusals.refuse(
          f"{node.field.name}={text} has no effect: {reason.why}; leave it "
          "out.")
