"""Factors of a robot's physics: what each changes, and what follows."""

import copy
import operator
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from qdrl_haiku import names
from qdrl_haiku.environments.randomizing import constants, frictions
from qdrl_haiku.environments.robots.model import element_names
from qdrl_haiku.ranges import Range
from qdrl_haiku.types import Array


class Factor(NamedTuple):
  """Says which numbers of a robot's physics a factor changes.

  Attributes:
    kind: of MuJoCo's elements that it's of, all or a named one; "" for none.
    fields: of brax's and of MuJoCo's models; those that there are.
    column: which of an element's numbers it changes, or None for all.
    multiplies: whether it multiplies; else it's added, in metres or degrees.
  """

  kind: str
  fields: tuple[str, ...]
  column: int | None = None
  multiplies: bool = True


_GAINS = (
  "actuator.gain", "actuator.bias_q", "actuator.bias_qd", "actuator_gainprm",
  "actuator_biasprm")
_CENTRE = "link.inertia.transform.pos", "body_ipos"
_GRAVITY = "gravity", "opt.gravity"
FACTORS: Mapping[str, Factor] = {
  "actuator_gain": Factor("actuator", _GAINS),
  "armature": Factor("dof", ("dof.armature", "dof_armature")),
  "com_x": Factor("body", _CENTRE, 0, multiplies=False),
  "com_y": Factor("body", _CENTRE, 1, multiplies=False),
  "com_z": Factor("body", _CENTRE, 2, multiplies=False),
  "damping": Factor("dof", ("dof.damping", "dof_damping")),
  "friction": Factor("geom", ("geom_friction", "pair_friction")),
  "gear": Factor("actuator", ("actuator.gear", "actuator_gear")),
  "geom_size": Factor("geom", ("geom_size", "geom_rbound")),
  "gravity": Factor("", _GRAVITY),
  "joint_friction": Factor("dof", ("dof_frictionloss",)),
  "kd": Factor("actuator", _GAINS),
  "kp": Factor("actuator", _GAINS),
  "mass": Factor(
    "body",
    ("link.inertia.mass", "link.inertia.i", "body_mass", "body_inertia")),
  "slope_x": Factor("", _GRAVITY, 0, multiplies=False),
  "slope_y": Factor("", _GRAVITY, 1, multiplies=False),
  "stiffness": Factor("dof", ("dof.stiffness", "jnt_stiffness"))}
# The parts of brax's systems, which MJX's models lack.
_BRAX_FIELDS = ("actuator", "dof", "gravity", "link")
# What is derived from these is derived anew.
_INERTIA_FACTORS = ("armature", "com_x", "com_y", "com_z", "mass")
# What brax's own two leave out.
_LEFT_OUT = ("armature", "damping", "stiffness")
# The parameters of a muscle that are forces; others are lengths and speeds.
_MUSCLE, _FORCES = 2, (2, 3)
_AFFINE = 1  # An actuator whose bias depends on its place and its speed.
# Spheres, capsules, ellipsoids, cylinders and boxes; other sizes shape nothing.
_SIZED = (2, 3, 4, 5, 6)


class Factors:
  """Changes the physics of one environment by what is drawn.

  Attributes:
    notes: what is good to know about them, a line each.
  """

  def __init__(self, env: Any, drawn: Mapping[str, Range]) -> None:
    """Finds what factors change; see `randomizing.randomized`."""
    self.notes: list[str] = []
    self._masks: dict[str, dict[str, np.ndarray]] = {}
    self._derive = None
    if not drawn:
      return
    sys, self._model = system_of(env)
    backend = getattr(env, "backend", "mjx")
    for name in drawn:
      masks = {
        x: _mask(sys, self._model, name, x)
        for x in FACTORS[_kind(name)].fields
        # What brax's systems have besides MJX's.
        if hasattr(sys, "link") or x.partition(".")[0] not in _BRAX_FIELDS}
      self._masks[name] = masks
      reason = _why_without_effect(sys, self._model, backend, name, masks)
      if reason:
        raise ValueError(f"randomize={name!r} has no effect{reason}")
      if _kind(name) == "friction":
        self.notes += frictions.check_friction_shows(
          self._model, backend, name, drawn)
    has_muscle = (self._model.actuator_gaintype == _MUSCLE).any()
    derived_from = (*_INERTIA_FACTORS, *["gear"] * int(has_muscle))
    # brax's own two don't read what is derived.
    is_read = backend not in ("spring", "positional")
    if is_read and any(_kind(name) in derived_from for name in drawn):
      self._derive = constants.derive_constants(self._model)

  def derive(self, values: Mapping[str, Array]) -> dict[str, Array]:
    """Returns the fields of MuJoCo's model that follow from factors."""
    if self._derive is None:
      return {}
    more: dict[str, Array] = {}
    if any(_kind(x).startswith("com_") for x in self._masks):
      zeros = jnp.zeros_like(self._model.body_ipos, dtype=jnp.float32)
      more["moved"] = self._changed("body_ipos", zeros, values)
    if any(_kind(x) == "armature" for x in self._masks):
      old = jnp.float32(self._model.dof_armature)
      more["armature"] = self._changed("dof_armature", old, values) - old
    found = self._derive(
      self._changed("body_mass", jnp.ones(1, jnp.float32), values), **more)
    if "actuator_acc0" in found:
      gears = jnp.ones((self._model.nu, 1))
      found["actuator_acc0"] *= jnp.abs(
        self._changed("actuator_gear", gears, values)[:, 0])
    return found

  def _changed(
    self, field: str, x: Array, values: Mapping[str, Array]
  ) -> Array:
    """Returns a field's numbers as all factors change them."""
    for name, masks in self._masks.items():
      if field in masks:
        x = _changed(name, x, masks[field], values[name])
    return x

  def change(
    self, env: Any, values: Mapping[str, Array], derived: Mapping[str, Array]
  ) -> Any:
    """Returns an environment like `env` with its physics changed.

    Args:
      env: of one instance, with brax's `sys`.
      values: [], by name, of the factors that were drawn.
      derived: what `derive` returned for them.
    """
    if not self._masks:
      return env
    sys, _ = system_of(env)
    for name, masks in self._masks.items():
      sys = sys.tree_replace({
        field: _changed(
          name, operator.attrgetter(field)(sys), mask, values[name])
        for field, mask in masks.items()})
    if derived:
      sys = sys.tree_replace(dict(derived))
      if hasattr(sys, "link"):  # brax's links leave out the world.
        sys = sys.tree_replace({
          "link.invweight": derived["body_invweight0"][1:, 0],
          "dof.invweight": derived["dof_invweight0"]})
    name = "sys" if hasattr(env, "sys") else "_mjx_model"
    return replaced(env, **{name: sys})


def _kind(name: str) -> str:
  """Returns which factor a name, "mass" or "mass/torso", is of."""
  return name.partition("/")[0]


def system_of(env: Any) -> tuple[Any, Any]:
  """Returns an environment's system, brax's or MJX's, and MuJoCo's model.

  Both are None of what is no robot of brax, of a file or of Playground.
  """
  for system in ("sys", "_mjx_model"):
    if (sys := getattr(env, system, None)) is not None:
      model = getattr(sys, "mj_model", None) or getattr(env, "mj_model", None)
      return (sys, model) if model is not None else (None, None)
  return None, None


def replaced(env: Any, **changes: Any) -> Any:
  """Returns an environment, through its wrappers, with other attributes."""
  env = copy.copy(env)
  if hasattr(env, "env"):
    env.env = replaced(env.env, **changes)
  else:
    vars(env).update(changes)
  return env


def _changed(name: str, x: Array, mask: np.ndarray, value: Array) -> Array:
  """Returns a field's numbers, changed by a factor where a mask is."""
  factor = FACTORS[_kind(name)]
  if factor.fields == _GRAVITY and factor.column is not None:
    # The floor rises along an axis where gravity turns against it.
    cos, sin = jnp.cos(jnp.radians(value)), jnp.sin(jnp.radians(value))
    along, up = x[factor.column], x[2]
    x = jnp.asarray(x).at[factor.column].set(along * cos + up * sin)
    return x.at[2].set(up * cos - along * sin)
  if factor.multiplies:
    return x * jnp.where(mask, value, 1.0)
  return x + jnp.where(mask, value, 0.0)


def _mask(sys: Any, model: Any, name: str, field: str) -> np.ndarray:
  """Returns where in a field the elements of a name are, as it broadcasts."""
  factor, _, one = name.partition("/")
  kind, _, column, _ = FACTORS[factor]
  shape = np.shape(operator.attrgetter(field)(sys))
  mask = np.ones((1,) * len(shape), bool)
  if one:
    mask = _is_one(model, name, kind, field, shape[0])
    mask = mask.reshape(-1, *(1,) * (len(shape) - 1))
  if column is not None and kind:
    mask = mask & (np.arange(shape[-1]) == column)
  if factor == "geom_size":
    is_sized = np.isin(model.geom_type, _SIZED)
    mask = mask & is_sized.reshape(-1, *(1,) * (len(shape) - 1))
  if factor in ("kp", "kd"):
    mask = mask & _is_gain(model, factor, field)
  elif field in ("actuator_gainprm", "actuator_biasprm"):
    types = getattr(model, field.replace("prm", "type"))
    is_force = np.isin(np.arange(shape[1]), _FORCES)
    mask = mask & ((types != _MUSCLE)[:, None] | is_force)
  return mask


def _is_gain(model: Any, factor: str, field: str) -> np.ndarray:
  """Returns which numbers are gains of places, "kp", or of speeds, "kd".

  An actuator's gain is what its bias is of: of the place, or else of the speed.
  """
  is_servo = model.actuator_biastype == _AFFINE
  of_place, of_speed = (
    is_servo & (model.actuator_biasprm[:, i] != 0) for i in (1, 2))
  none = np.zeros(model.nu, bool)
  gain, bias_q, bias_qd = (
    (of_place, of_place, none) if factor == "kp"
    else (of_speed & ~of_place, none, of_speed))
  return {
    "actuator.gain": gain, "actuator.bias_q": bias_q,
    "actuator.bias_qd": bias_qd,
    "actuator_gainprm": np.stack([gain] + [none] * 9, 1),
    "actuator_biasprm": np.stack([none, bias_q, bias_qd] + [none] * 7, 1),
  }[field]


def chosen(model: Any, name: str, kind: str) -> np.ndarray:
  """Returns which elements of a `kind` in a `model` a factor is of, bool [N].

  `name` is the factor's, such as "mass", "mass/torso" or "mass/*leg*".

  Raises:
    ValueError: if it is of none.
  """
  one = name.partition("/")[2]
  label = "joint" if kind == "dof" else kind
  known = element_names(model, label) if kind else []
  found = np.array([names.is_of(one, x) for x in known], bool)
  if not found.any():
    raise ValueError(
      f"randomize={name!r}: there is no {label or f'part of {_kind(name)}'} "
      f"{one!r}; {names.nearest_name(one, filter(None, known))}")
  return found


def _is_one(
  model: Any, name: str, kind: str, field: str, size: int
) -> np.ndarray:
  """Returns which of a field's elements [N] are, or are of, named ones."""
  found = chosen(model, name, kind)
  if field == "pair_friction":
    return found[model.pair_geom1] | found[model.pair_geom2]
  if kind == "dof" and field != "jnt_stiffness":
    return found[model.dof_jntid]
  return found[len(found) - size :]  # brax's links leave out the world.


def _why_without_effect(
  sys: Any, model: Any, backend: str | None, name: str,
  masks: Mapping[str, np.ndarray],
) -> str:
  """Returns why a factor changes nothing, and what to do, or ""."""
  factor, _, one = name.partition("/")
  instead = "give backend=generalized or mjx."
  is_plain = backend in ("spring", "positional")
  if is_plain and factor in _LEFT_OUT:
    return f" in {backend}, which leaves out joints' {factor}; {instead}"
  if is_plain and factor == "mass" and (
    sys.spring_mass_scale == sys.spring_inertia_scale == 1
  ):
    return (
      f" in {backend}, which gives all parts of this robot a mass of 1; "
      f"{instead}")
  if FACTORS[factor].multiplies and not any(
    np.any(np.asarray(operator.attrgetter(field)(sys)) * mask)
    for field, mask in masks.items()
  ):
    return ": what it multiplies is 0 in this robot; leave it out."
  if FACTORS[factor].kind == "body" and one:
    bodies = model.body_weldid[chosen(model, name, "body")]
    if not model.body_dofnum[bodies].any():
      return ": that body can't move; leave it out."
  return ""
