"""Domain randomisation: physics and sensing that differ between episodes.

Tobin et al., arXiv 1703.06907; Peng et al., arXiv 1710.06537. What is drawn
depends on an episode's key alone, and stays until the episode ends.
"""

from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp

from qdrl_haiku import names, ranges, specs, trees
from qdrl_haiku.environments import validation
from qdrl_haiku.environments.interface import SingleEnvironment, State
from qdrl_haiku.environments.randomizing.factors import FACTORS, Factors
from qdrl_haiku.environments.wrappers import Around
from qdrl_haiku.ranges import Range, parse_range
from qdrl_haiku.types import Array, Key, Tree

_KEY = "randomization"
_SENSING = ("action_delay", "action_noise", "observation_noise")


class Randomized(Around):
  """One instance of an environment, whose physics or sensing is randomised.

  `info["randomization"]` of its states holds the drawn values.
  """

  def __init__(
    self, env: SingleEnvironment, drawn: Mapping[str, Range]
  ) -> None:
    """Wraps an environment; see `randomized`."""
    self.env = env
    self._drawn = dict(sorted(drawn.items()))
    factors = {name: x for name, x in self._drawn.items() if is_factor(name)}
    if factors and not hasattr(getattr(env, "sys", None), "mj_model"):
      raise ValueError(
        f"randomize={min(factors)!r} is of a robot's physics, and "
        f"{type(env).__name__} is no robot of brax or of a file; give one of "
        f"{', '.join(_SENSING)}.")
    self._factors = Factors(env, factors)
    if self._factors.notes:
      notes = [getattr(env, "note", None), *self._factors.notes]
      self.note = "\n".join(filter(None, notes))
    self.action_spec = validation.declared_action(env)
    if "action_noise" in drawn:
      specs.action_size(self.action_spec)  # Refuses discrete ones.
    self._longest = 0
    if "action_delay" in drawn:
      low, high = ranges.bounds(drawn["action_delay"])
      if low < 0 or high > 100:
        raise ValueError(
          f"randomize='action_delay' reaches from {low:g} to {high:g} steps; "
          "give delays from 0 to 100.")
      self._longest = round(high)

  def reset(self, rng: Key) -> State:
    """Draws an initial state, and what differs in the episode."""
    reset_key, noise_key, draw_key = jax.random.split(rng, 3)
    keys = jax.random.split(draw_key, len(self._drawn))
    values = {
      name: range_.sample(key)
      for (name, range_), key in zip(self._drawn.items(), keys, strict=True)}
    derived = self._factors.derive(values)
    state = self._factors.change(self.env, values, derived).reset(reset_key)
    past = specs.zeros(self.action_spec, self._longest)
    return self._sensed(state, {
      "values": values, "derived": derived, "key": noise_key,
      "past_actions": past})

  def step(self, state: State, action: Array, *tunables: Tree) -> State:
    """Advances by one step; args are those of `Wrapper.step`."""
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
    env = self._factors.change(self.env, values, drawn["derived"])
    state = env.step(state, action, *tunables)
    key = jax.random.fold_in(drawn["key"], 2)
    return self._sensed(state, drawn | {"key": key, "past_actions": past})

  def _sensed(self, state: State, drawn: dict[str, Tree]) -> State:
    """Returns a state as it's observed, with what was drawn."""
    obs = state.obs
    if "observation_noise" in drawn["values"]:
      drawn["observation"] = obs
      key = jax.random.fold_in(drawn["key"], 0)
      obs = _noisy(key, obs, drawn["values"]["observation_noise"])
    return state.replace(obs=obs, info={**state.info, _KEY: drawn})


def _noisy(key: Key, observation: Tree, scale: Array) -> Tree:
  """Adds noise to the floats that policies see; others are exact."""
  leaves = trees.named_tree_leaves(observation)
  keys = jax.random.split(key, len(leaves)) if len(leaves) > 1 else [key]
  return jax.tree.unflatten(jax.tree.structure(observation), [
    x + scale * jax.random.normal(key, x.shape)
    if specs.is_float(x) and not name.startswith(specs.PRIVILEGED)
    else x
    for (name, x), key in zip(leaves, keys, strict=True)])


def randomized(
  env: SingleEnvironment, specifications: Sequence[str]
) -> SingleEnvironment:
  """Makes an environment whose physics or sensing differs between episodes.

  Args:
    env: of one instance.
    specifications: "name:kind:low:high", see `ranges.parse_range`. For a robot,
      factors of the numbers in its file: friction, mass, damping (of joints),
      actuator_gain, gravity; "mass/torso" changes one body, and likewise one
      geom, joint or actuator. A geom's friction is also that of its <pair>s.
      For any environment: observation_noise and action_noise, standard
      deviations, and action_delay, in steps, rounded.

  Returns:
    The environment, or `env` itself if there are no specifications.

  Raises:
    ValueError: if a specification is malformed, names what isn't there, or has
      no effect.
  """
  if not specifications:
    return env
  drawn: dict[str, Range] = {}
  for text in specifications:
    name, range_ = parse_range(text, "randomize")
    if name in drawn:
      raise ValueError(f"randomize has {name} twice; give one range of it.")
    least, _ = ranges.bounds(range_)
    if name.partition("/")[0] == "mass" and least <= 0:
      raise ValueError(
        f"randomize={name!r} reaches down to {least:g}; give factors above 0.")
    drawn[name] = range_
  return Randomized(env, drawn)


def drawn_values(state: State) -> dict[str, Array]:
  """Returns what was drawn for episodes, of an `Environment`'s states [...]."""
  return state.pipeline_state.info[_KEY]["values"]


def is_factor(name: str) -> bool:
  """Returns whether a name is of what multiplies the physics, if it's known."""
  kind = name.partition("/")[0]
  if kind in FACTORS or name in _SENSING:
    return kind in FACTORS
  raise ValueError(
    f"randomize={name!r} is unknown; "
    f"{names.nearest_name(kind, [*FACTORS, *_SENSING])}")
