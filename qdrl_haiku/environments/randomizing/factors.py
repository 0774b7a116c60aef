"""Factors of a robot's physics: what each multiplies, and what follows."""

import copy
import operator
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

from qdrl_haiku import names
from qdrl_haiku.environments.randomizing import frictions, masses
from qdrl_haiku.environments.robots.model import element_names
from qdrl_haiku.ranges import Range
from qdrl_haiku.types import Array

# For each factor the kind of MuJoCo's elements that it changes, and the fields
# of brax's and MuJoCo's models that it multiplies, for all elements or for one.
FACTORS: Mapping[str, tuple[str, tuple[str, ...]]] = {
  "actuator_gain": (
    "actuator",
    (
      "actuator.gain", "actuator.bias_q", "actuator.bias_qd",
      "actuator_gainprm", "actuator_biasprm")),
  "damping": ("dof", ("dof.damping", "dof_damping")),
  "friction": ("geom", ("geom_friction", "pair_friction")),
  "gravity": ("", ("gravity", "opt.gravity")),
  "mass": (
    "body",
    ("link.inertia.mass", "link.inertia.i", "body_mass", "body_inertia"))}
# The parameters of a muscle that are forces; others are lengths and speeds.
_MUSCLE, _FORCES = 2, (2, 3)


class Factors:
  """Multiplies the physics of one environment by what is drawn.

  Attributes:
    notes: what is good to know about them, a line each.
  """

  def __init__(self, env: Any, drawn: Mapping[str, Range]) -> None:
    """Finds what factors multiply; see `randomizing.randomized`."""
    sys: Any = getattr(env, "sys", None)
    self._masks = {
      name: {
        field: _mask(sys, name, field)
        for field in FACTORS[name.partition("/")[0]][1]}
      for name in drawn}
    backend = getattr(env, "backend", None)
    self.notes: list[str] = []
    for name in drawn:
      reason = _why_without_effect(sys, backend, name, self._masks[name])
      if reason:
        raise ValueError(f"randomize={name!r} has no effect{reason}")
      if name.partition("/")[0] == "friction":
        self.notes += frictions.check_friction_shows(
          sys.mj_model, backend, name, drawn)
    self._from_masses = None
    # brax's own two don't read what is derived.
    is_read = backend not in ("spring", "positional")
    if is_read and any(map(_is_of_masses, drawn)):
      self._from_masses = masses.derive_from_masses(sys.mj_model)

  def derive(self, values: Mapping[str, Array]) -> dict[str, Array]:
    """Returns the fields of MuJoCo's model that follow from factors."""
    if self._from_masses is None:
      return {}
    factors = jnp.float32(1.0)
    for name in filter(_is_of_masses, self._masks):
      mask = self._masks[name]["body_mass"]
      factors = factors * jnp.where(mask, values[name], 1.0)
    return self._from_masses(factors)

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
    sys = env.sys
    for name, masks in self._masks.items():
      sys = sys.tree_replace({
        field: operator.attrgetter(field)(sys)
        * jnp.where(mask, values[name], 1.0)
        for field, mask in masks.items()})
    if derived:  # brax's links leave out the world.
      sys = sys.tree_replace({
        **derived, "link.invweight": derived["body_invweight0"][1:, 0],
        "dof.invweight": derived["dof_invweight0"]})
    return _with_system(env, sys)


def _is_of_masses(name: str) -> bool:
  """Returns whether a factor is of masses."""
  return name.partition("/")[0] == "mass"


def _with_system(env: Any, sys: Any) -> Any:
  """Returns an environment, through its wrappers, with another system."""
  env = copy.copy(env)
  if hasattr(env, "env"):
    env.env = _with_system(env.env, sys)
  else:
    env.sys = sys
  return env


def _mask(sys: Any, name: str, field: str) -> np.ndarray:
  """Returns where in a field the elements of a name are, as it broadcasts."""
  factor, _, one = name.partition("/")
  kind = FACTORS[factor][0]
  shape = np.shape(operator.attrgetter(field)(sys))
  model = sys.mj_model
  mask = np.ones((1,) * len(shape), bool)
  if one:
    mask = _is_one(model, name, kind, one, field, shape[0])
    mask = mask.reshape(-1, *(1,) * (len(shape) - 1))
  if field in ("actuator_gainprm", "actuator_biasprm"):
    types = getattr(model, field.replace("prm", "type"))
    is_force = np.isin(np.arange(shape[1]), _FORCES)
    mask = mask & ((types != _MUSCLE)[:, None] | is_force)
  return mask


def _is_one(
  model: Any, name: str, kind: str, one: str, field: str, size: int
) -> np.ndarray:
  """Returns which of a field's elements [N] are, or are of, a named one."""
  label = "joint" if kind == "dof" else kind
  known = element_names(model, label) if kind else []
  if one not in known:
    raise ValueError(
      f"randomize={name!r}: there is no {label or 'part of gravity'} {one!r}; "
      f"{names.nearest_name(one, filter(None, known))}")
  index = known.index(one)
  if kind == "dof":
    return np.asarray(model.dof_jntid) == index
  if field == "pair_friction":
    return (model.pair_geom1 == index) | (model.pair_geom2 == index)
  # brax's links leave out the world.
  return np.arange(len(known))[len(known) - size :] == index


def _why_without_effect(
  sys: Any, backend: str | None, name: str, masks: Mapping[str, np.ndarray]
) -> str:
  """Returns why a factor changes nothing, and what to do, or ""."""
  factor, _, one = name.partition("/")
  model, instead = sys.mj_model, "give backend=generalized or mjx."
  is_plain = backend in ("spring", "positional")
  if is_plain and factor == "damping":
    return f" in {backend}, which leaves out joints' damping; {instead}"
  has_masses_of_1 = sys.spring_mass_scale == sys.spring_inertia_scale == 1
  if is_plain and factor == "mass" and has_masses_of_1:
    return (
      f" in {backend}, which gives all parts of this robot a mass of 1; "
      f"{instead}")
  if not any(
    np.any(np.asarray(operator.attrgetter(field)(sys)) * mask)
    for field, mask in masks.items()
  ):
    return ": what it multiplies is 0 in this robot; leave it out."
  if factor == "mass" and one:
    body = model.body_weldid[element_names(model, "body").index(one)]
    if not model.body_dofnum[body]:
      return ": that body can't move; leave it out."
  return ""
