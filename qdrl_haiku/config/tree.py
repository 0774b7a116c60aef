"""Walks trees of settings: their flags, their values, and changes of them."""

import dataclasses
from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

import numpy as np

from qdrl_haiku import names
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
  declared: Declaration  # The declaration.
  section: str  # The title under which `--help` lists it.

  def text(self, value: Any) -> str:
    """Returns the flag with a value, as it is typed."""
    is_list = isinstance(value, list | tuple)
    return f"--{self.name}={','.join(map(str, value)) if is_list else value}"


class _Node(NamedTuple):
  """Holds a field of a configuration; `declared` is None for a section."""

  field: dataclasses.Field
  flag: str
  declared: Declaration | None
  value: Any

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
  """Returns the flags of all settings in a tree, and in all of its choices.

  They are named, in the order of declaration, with the tree's values as their
  defaults. Flags of several kinds are there once.
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


def kind_in_config_tree(config: Settings, name: str) -> str:
  """Returns the name of the kind that a choice has, by its field."""
  node = next(x for x in _nodes(config) if x.field.name == name)
  assert node.declared is not None
  return _kind_name(node.declared, node.value)


def config_tree_values(config: Settings) -> Changes:
  """Returns the values of all settings that a configuration has, by flag.

  They are as JSON has them. A hyperparameter with a flag of its own that isn't
  given is None.
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


def _plain(value: Any) -> Any:
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
    typed: flags of the command line itself, beside which flags of a flagfile
      may have no effect; None to allow that of all, as of a `config.json`.

  Raises:
    ValueError: if a value is wrong or has no effect.
  """
  known = config_tree_flags(config)
  without: dict[str, Missing] = {}
  used: set[str] = set()
  result = _replaced(config, given, used, without)
  missing = result.missing()
  result = _reset(result, missing)
  for name in given:
    need = known[name].declared.needs
    reason = missing.get(need) if name in used and need else None
    reason = reason or (None if name in used else without.get(name))
    if reason is None or typed is None:
      continue
    if name in typed or not any(by in typed for by in reason.by):
      raise ValueError(
        f"{known[name].text(given[name])} has no effect: {reason.why}; leave "
        "it out.")
  return result


def _replaced(
  config: S, given: Values, used: set[str], without: dict[str, Missing]
) -> S:
  """Replaces values in one configuration and those below it.

  Adds the flags that take effect to `used`, and why others don't to `without`.
  """
  changes: Changes = {}
  known = setting_kinds(type(config))
  for node in _nodes(config):
    name, declared, flag = node.field.name, node.declared, node.flag
    if declared is None:
      changes[name] = _replaced(node.value, given, used, without)
    elif declared.keys:
      changes[name] = dict(node.value) | _numbers(declared, flag, given)
      used |= {*declared.keys, flag}
    elif declared.kinds:
      used.add(flag)
      kind = _chosen(node, given)
      changes[name] = _replaced(kind, given, used, without)
      why = f"--{flag}={_kind_name(declared, kind)} has no such setting"
      for other in declared.kinds.values():
        for absent in config_tree_flags(other):
          without.setdefault(absent, Missing(why, (flag,)))
    elif flag in given and flag:
      used.add(flag)
      changes[name] = known[name].parse(given[flag])
  after = vars(config) | changes
  for node in _nodes(config):
    if node.declared and (by := node.declared.unmet(after)) is not None:
      changes[node.field.name] = node.field.default
      used.discard(node.flag)
      without[node.flag] = Missing(f"--{by}={after[by]}", (by,))
  return dataclasses.replace(config, **changes)


def _chosen(node: _Node, given: Values) -> Settings:
  """Returns the kind of a choice that a flag names."""
  assert node.declared is not None
  known = node.declared.kinds
  name = given.get(node.flag)
  # Named again, it keeps its settings.
  if name is None or name == _kind_name(node.declared, node.value):
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
      changes[node.field.name] = node.field.default
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
  for node in _nodes(config):
    value, text = node.value, repr(node.value)
    reason = missing.get((node.declared and node.declared.needs) or "")
    changed = value != node.field.default
    if isinstance(value, Settings):
      check_config_tree(value, missing)
      # Its settings have been looked at one by one.
      changed = type(value) is not type(node.field.default)
      text = f"{type(value).__name__}(...)"
    if reason is not None and changed:
      raise ValueError(
        f"{node.field.name}={text} has no effect: {reason.why}; leave it out.")
