"""Domain randomisation: physics and sensing that differ between episodes.

Tobin et al., arXiv 1703.06907; Peng et al., arXiv 1710.06537. What is drawn
depends on an episode's key alone, and stays until the episode ends.
"""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from qdrl_haiku import names
from qdrl_haiku.environments.interface import SingleEnvironment, State
from qdrl_haiku.ranges import Range, parse_range
from qdrl_haiku.types import Array, Key, Tree

_KEY = "randomization"
# For each factor the kind of MuJoCo's elements that it changes, and the fields
# of brax's and MuJoCo's models that it multiplies, for all elements or for one.
_FACTORS: Mapping[str, tuple[str, tuple[str, ...]]] = {
  "actuator_gain": (
    "actuator",
    (
      "actuator.gain", "actuator.bias_q", "actuator.bias_qd",
      "actuator_gainprm", "actuator_biasprm")),
  "damping": ("dof", ("dof.damping", "dof_damping")),
  "friction": ("geom", ("geom_friction",)),
  "gravity": ("", ("gravity", "opt.gravity")),
  "mass": (
    "body",
    ("link.inertia.mass", "link.inertia.i", "body_mass", "body_inertia"))}
_SENSING = ("action_delay", "action_noise", "observation_noise")


class Randomized:
  """One instance of an environment, whose physics or sensing is randomised.

  `info["randomization"]` of its states holds the drawn values. Other attributes
  are those of the environment inside.
  """

  def __init__(
    self, env: SingleEnvironment, drawn: Mapping[str, Range]
  ) -> None:
    """Wraps an environment; see `randomized`."""
    self.env = env
    self._drawn = dict(sorted(drawn.items()))
    self._scales = _scales(env, [x for x in self._drawn if is_factor(x)])
    delay = self._drawn.get("action_delay")
    self._longest = 0 if delay is None else _largest(delay)

  def reset(self, rng: Key) -> State:
    """Draws an initial state, and what differs in the episode."""
    reset_key, noise_key, draw_key = jax.random.split(rng, 3)
    keys = jax.random.split(draw_key, len(self._drawn))
    values = {
      name: range_.sample(key)
      for (name, range_), key in zip(self._drawn.items(), keys, strict=True)}
    state = self._with_values(values).reset(reset_key)
    past = jnp.zeros((self._longest, self.env.action_size))
    return self._sensed(
      state, {"values": values, "key": noise_key, "past_actions": past})

  def step(self, state: State, action: Array) -> State:
    """Advances by one step with action [A]."""
    info = dict(state.info)
    drawn = info.pop(_KEY)
    values, past = drawn["values"], drawn["past_actions"]
    if "action_noise" in values:
      key = jax.random.fold_in(drawn["key"], 1)
      noise = values["action_noise"] * jax.random.normal(key, action.shape)
      action = jnp.clip(action + noise, -1.0, 1.0)
    if self._longest:
      past = jnp.concatenate([action[None], past])
      delay = jnp.round(values["action_delay"]).astype(jnp.int32)
      action, past = past[delay], past[:-1]
    obs = drawn.get("observation", state.obs)
    state = state.replace(obs=obs, info=info)
    state = self._with_values(values).step(state, action)
    key = jax.random.fold_in(drawn["key"], 2)
    return self._sensed(
      state, {"values": values, "key": key, "past_actions": past})

  def _sensed(self, state: State, drawn: dict[str, Tree]) -> State:
    """Returns a state as it's observed, with what was drawn."""
    obs = state.obs
    if "observation_noise" in drawn["values"]:
      drawn["observation"] = obs
      key = jax.random.fold_in(drawn["key"], 0)
      noise = jax.random.normal(key, obs.shape)
      obs = obs + drawn["values"]["observation_noise"] * noise
    return state.replace(obs=obs, info={**state.info, _KEY: drawn})

  def _with_values(self, values: Mapping[str, Array]) -> Any:
    """Returns the environment with its physics changed."""
    if not self._scales:
      return self.env
    env: Any = self.env
    sys = env.sys
    for name, fields in self._scales.items():
      for field, is_meant in fields.items():
        factor = jnp.where(is_meant, values[name], 1.0)
        sys = _multiplied(sys, field.split("."), factor)
    return _with_system(self.env, sys)

  def __getattr__(self, name: str) -> Any:
    # An object that is just being copied or unpickled has no `env` yet.
    if name == "env":
      raise AttributeError(name)
    return getattr(self.env, name)


def randomized(
  env: SingleEnvironment, specifications: Sequence[str]
) -> SingleEnvironment:
  """Makes an environment whose physics or sensing differs between episodes.

  Args:
    env: of one instance.
    specifications: "name:kind:low:high", see `ranges.parse_range`. For a robot,
      factors of the numbers in its file: friction, mass, damping (of joints),
      actuator_gain, gravity; "mass/torso" changes one body, and likewise one
      geom, joint or actuator. For any environment: observation_noise and
      action_noise, standard deviations, and action_delay, in steps, rounded.

  Returns:
    The environment, or `env` itself if there are no specifications.

  Raises:
    ValueError: if a specification is malformed or names what isn't there.
  """
  if not specifications:
    return env
  drawn = [parse_range(text, "randomize") for text in specifications]
  names_of_all = [name for name, _ in drawn]
  for name in names_of_all:
    if names_of_all.count(name) > 1:
      raise ValueError(f"randomize has {name} twice; give one range of it.")
  for name, range_ in drawn:
    if name.partition("/")[0] == "mass" and _bounds(range_)[0] <= 0:
      raise ValueError(
        f"randomize={name!r} reaches down to {_bounds(range_)[0]:g}; give "
        "factors above 0.")
  return Randomized(env, dict(drawn))


def drawn_values(state: State) -> dict[str, Array]:
  """Returns what was drawn for the episodes of an environment's states [...].

  Args:
    state: of `Environment`, one that is randomised.
  """
  return state.pipeline_state.info[_KEY]["values"]


def is_factor(name: str) -> bool:
  """Returns whether a name is of what multiplies the physics.

  Raises:
    ValueError: if it's unknown.
  """
  kind = name.partition("/")[0]
  if kind in _FACTORS or name in _SENSING:
    return kind in _FACTORS
  raise ValueError(
    f"randomize={name!r} is unknown; "
    f"{names.nearest_name(kind, [*_FACTORS, *_SENSING])}")


def _largest(delay: Range) -> int:
  """Returns the longest delay that may be drawn, in steps."""
  low, high = _bounds(delay)
  if low < 0 or high > 100:
    raise ValueError(
      f"randomize='action_delay' reaches from {low:g} to {high:g} steps; give "
      "delays from 0 to 100.")
  return round(high)


def _bounds(drawn: Range) -> tuple[float, float]:
  """Returns the least and the largest value that may be drawn."""
  ends = [
    float(x)
    for name in ("low", "high", "value", "values")
    for x in np.atleast_1d(getattr(drawn, name, ()))]
  return min(ends), max(ends)


def _scales(
  env: Any, factors: Sequence[str]
) -> dict[str, dict[str, np.ndarray]]:
  """Returns the fields that each factor multiplies, and where."""
  if not factors:
    return {}
  sys = getattr(env, "sys", None)
  if not hasattr(sys, "mj_model"):
    raise ValueError(
      f"randomize={factors[0]!r} is of a robot's physics, and "
      f"{type(env).__name__} is no robot of brax or of a file; give one of "
      f"{', '.join(_SENSING)}.")
  found = {}
  for name in factors:
    factor, _, one = name.partition("/")
    _check_has_effect(env, name, factor)
    kind, fields = _FACTORS[factor]
    found[name] = {
      field: _mask(sys, name, kind, one, field) for field in fields}
  return found


def _check_has_effect(env: Any, name: str, factor: str) -> None:
  """Refuses a factor of what brax's spring and positional don't simulate."""
  backend, reason = getattr(env, "backend", None), ""
  if backend not in ("spring", "positional"):
    return
  if factor == "damping":
    reason = "leaves out joints' damping"
  elif factor == "mass" and (
    env.sys.spring_mass_scale == env.sys.spring_inertia_scale == 1
  ):
    reason = "gives all parts of this robot a mass of 1"
  if reason:
    raise ValueError(
      f"randomize={name!r} has no effect in {backend}, which {reason}; give "
      "backend=generalized or mjx.")


def _mask(sys: Any, name: str, kind: str, one: str, field: str) -> np.ndarray:
  """Returns where in a field the elements of a name are, [N, 1, ...]."""
  value: Any = sys
  for part in field.split("."):
    value = getattr(value, part)
  shape = np.shape(value)
  if not one:
    return np.ones((1,) * len(shape), bool)
  model = sys.mj_model
  count = {"dof": model.njnt, "body": model.nbody}.get(
    kind, getattr(model, f"n{'u' if kind == 'actuator' else kind}", 0))
  label = "joint" if kind == "dof" else kind
  known = [getattr(model, label)(i).name for i in range(count)] if kind else []
  if one not in known:
    raise ValueError(
      f"randomize={name!r}: there is no {label or 'part of gravity'} {one!r}; "
      f"{names.nearest_name(one, filter(None, known))}")
  index = known.index(one)
  if kind == "dof":
    mask = np.asarray(model.dof_jntid) == index
  else:
    # brax's links leave out the world.
    mask = np.arange(count)[count - shape[0] :] == index
  return mask.reshape(-1, *(1,) * (len(shape) - 1))


def _multiplied(tree: Any, path: Sequence[str], factor: Array) -> Any:
  """Returns a model one field of which is multiplied."""
  name, *rest = path
  value = getattr(tree, name)
  changed = _multiplied(value, rest, factor) if rest else value * factor
  return tree.replace(**{name: changed})


def _with_system(env: Any, sys: Any) -> Any:
  """Returns an environment, through its wrappers, with another system."""
  env = copy.copy(env)
  if hasattr(env, "env"):
    env.env = _with_system(env.env, sys)
  else:
    env.sys = sys
  return env
