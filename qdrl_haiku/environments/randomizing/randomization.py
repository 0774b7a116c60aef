"""Domain randomisation: physics and sensing that differ between episodes.

Tobin et al., arXiv 1703.06907; Peng et al., arXiv 1710.06537. What is drawn
depends on an episode's key alone, and stays until the episode ends. Of each
range an agent's own part is a tunable, `env/mass/low` and `env/mass/high`, so
that what sets hyperparameters may set a curriculum. So is `boundary_share`, how
often one number is at a boundary of that part, and all others within it.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import jax
import jax.numpy as jnp

from qdrl_haiku import names, ranges, specs, trees
from qdrl_haiku.environments import validation
from qdrl_haiku.environments.interface import (
  BOUNDARY_SHARE,
  CURRICULUM,
  SingleEnvironment,
  State,
)
from qdrl_haiku.environments.randomizing import factors, motions
from qdrl_haiku.environments.wrappers import Around
from qdrl_haiku.hyperparameter import Hyperparameter
from qdrl_haiku.ranges import Range, parse_range
from qdrl_haiku.types import Array, Key, Tree

_KEY = "randomization"
_SIDES = ("low", "high")
_SENSING = ("action_delay", "action_noise", "observation_noise")
_ABOVE_0 = ("armature", "geom_size", "mass", "push_interval")


class Randomized(Around):
  """One instance of an environment, whose physics or sensing is randomised.

  `info["randomization"]` of its states holds the drawn values.

  Attributes:
    tunables: those of `env`, and as many ends of ranges as there are: how far
      an agent's own reaches there, from where nothing is changed, 0, to the
      whole range, 1. What an episode begins with, `initial_pose`, has none.
    boundaries: names of the tunables of ends.
  """

  def __init__(
    self, env: SingleEnvironment, drawn: Mapping[str, Range]
  ) -> None:
    """Wraps an environment; see `randomized`."""
    self.env = env
    self._drawn = dict(sorted(drawn.items()))
    of_physics, of_motions = (
      {name: x for name, x in self._drawn.items() if _kind(name) in kinds}
      for kinds in (factors.FACTORS, motions.MOTIONS))
    physical = {**of_physics, **of_motions}
    if physical and factors.system_of(env)[0] is None:
      raise ValueError(
        f"randomize={min(physical)!r} is of a robot's physics, and "
        f"{type(env).__name__} is no robot of brax, of a file or of "
        f"Playground; give one of {', '.join(_SENSING)}.")
    self._factors = factors.Factors(env, of_physics)
    self._motions = motions.Motions(env, of_motions)
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
    self._neutral = {
      name: _neutral(name, range_) for name, range_ in self._drawn.items()
      if _kind(name) != "initial_pose"}
    self._tuned: Mapping[str, Hyperparameter] = getattr(env, "tunables", {})
    self.tunables = dict(self._tuned)
    self._ends = {name: ranges.bounds(drawn[name]) for name in self._neutral}
    for name, neutral in self._neutral.items():
      self.tunables |= {
        f"{name}/{side}": Hyperparameter(
          1.0, f"share of the way from {neutral:g} to {end:g}.", high=1.0)
        for side, end in zip(_SIDES, self._ends[name], strict=True)
        if end != neutral}
    self.boundaries = tuple(x for x in self.tunables if x not in self._tuned)
    if self.boundaries:
      self.tunables[BOUNDARY_SHARE] = Hyperparameter(
        0.0, "share of the episodes that are at a boundary.", high=1.0)

  def reset(self, rng: Key) -> State:
    """Draws an initial state, and what differs in the episode."""
    reset_key, noise_key, draw_key = jax.random.split(rng, 3)
    keys = jax.random.split(draw_key, len(self._drawn))
    values = {
      name: range_.sample(key)
      for (name, range_), key in zip(self._drawn.items(), keys, strict=True)}
    derived = self._factors.derive(values)
    env = self._factors.change(self.env, values, derived)
    env = self._motions.posed(env, values, jax.random.fold_in(noise_key, 3))
    state = env.reset(reset_key)
    past = specs.zeros(self.action_spec, self._longest)
    return self._sensed(state, {
      "values": values, "derived": derived, "key": noise_key,
      "past_actions": past, "is_new": jnp.ones((), bool),
      CURRICULUM: {"boundary": jnp.int32(-1), "return": jnp.float32(0)}})

  def step(self, state: State, action: Array, *tunables: Tree) -> State:
    """Advances by one step; args are those of `Wrapper.step`."""
    info = dict(state.info)
    drawn = self._narrowed(info.pop(_KEY), *tunables)
    if tunables:
      # What isn't the environment's own is no matter of its.
      own = {x: y for x, y in tunables[0].items() if x in self._tuned}
      tunables = (own,) if self._tuned else ()
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
    state = self._motions.pushed(
      state, values, jax.random.fold_in(drawn["key"], 4))
    env = self._factors.change(self.env, values, drawn["derived"])
    state = env.step(state, action, *tunables)
    key = jax.random.fold_in(drawn["key"], 2)
    told = drawn[CURRICULUM]
    told |= {"return": told["return"] + jnp.float32(state.reward)}
    return self._sensed(
      state, drawn | {"key": key, "past_actions": past, CURRICULUM: told})

  def _narrowed(
    self, drawn: dict[str, Tree],
    tunables: Mapping[str, Array | float] = MappingProxyType({}),
  ) -> dict[str, Tree]:
    """Returns what was drawn, in an agent's own ranges from the first step on.

    Not from the reset on, which is the same for all agents.
    """
    is_new, values = drawn["is_new"], dict(drawn["values"])
    drawn = drawn | {"is_new": jnp.zeros((), bool)}
    own = {name: x for name, x in tunables.items() if name not in self._tuned}
    if all(
      isinstance(x, float) and x == self.tunables[name].default
      for name, x in own.items()
    ):
      return drawn  # As in evaluation.
    share = own.get(BOUNDARY_SHARE, 0.0)
    at, index = jax.random.uniform(jax.random.fold_in(drawn["key"], 5), (2,))
    index = (index * len(self.boundaries)).astype(jnp.int32)
    index = jnp.where(at < share, index, -1)
    for name, neutral in self._neutral.items():
      beyond = values[name] - neutral
      low, high = (own.get(f"{name}/{side}", 1.0) for side in _SIDES)
      share = jnp.where(beyond < 0, low, high)
      narrowed = values[name] + (share - 1) * beyond
      for side, end in zip(_SIDES, self._ends[name], strict=True):
        if (boundary := f"{name}/{side}") in self.boundaries:
          reached = neutral + own.get(boundary, 1.0) * (end - neutral)
          is_there = index == self.boundaries.index(boundary)
          narrowed = jnp.where(is_there, reached, narrowed)
      values[name] = jnp.where(is_new, narrowed, values[name])
    told = drawn[CURRICULUM]
    told |= {"boundary": jnp.where(is_new, index, told["boundary"])}
    return drawn | {
      "values": values, "derived": self._factors.derive(values),
      CURRICULUM: told}

  def _sensed(self, state: State, drawn: dict[str, Tree]) -> State:
    """Returns a state as it's observed, with what was drawn."""
    obs = state.obs
    if "observation_noise" in drawn["values"]:
      drawn["observation"] = obs
      key = jax.random.fold_in(drawn["key"], 0)
      obs = _noisy(key, obs, drawn["values"]["observation_noise"])
    told = {_KEY: drawn, CURRICULUM: drawn[CURRICULUM]}
    return state.replace(obs=obs, info=state.info | told)


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
    specifications: "name:kind:low:high", see `ranges.parse_range`. For a robot
      of brax, of a file, of Gymnasium on MJX or of Playground: factors of its
      own numbers: friction and geom_size (of geoms), mass (of bodies, with
      their inertia), damping, armature, stiffness and joint_friction (of
      joints), actuator_gain (of all of a gain and its bias), kp, kd (of what an
      actuator's force owes to a place or a speed), gear, gravity. Added to
      them: com_x, com_y, com_z, in metres, in a body's own frame; slope_x and
      slope_y, how many degrees the floor rises along an axis, for which gravity
      turns. Of its motion: initial_pose, how far each hinge and slide may begin
      from where it would, in radians and metres, within its limits; push, a
      velocity in m/s that the root gets sideways at random times, every
      push_interval seconds in the mean, 5 by default. "mass/torso" changes one
      body, and so named factors one geom, joint or actuator; "mass/*leg*"
      changes several by one number. A geom's friction is also that of its
      <pair>s.
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
    _check_bounds(name, *ranges.bounds(range_))
    drawn[name] = range_
  return Randomized(env, drawn)


def drawn_values(state: State) -> dict[str, Array]:
  """Returns what was drawn for episodes, of an `Environment`'s states [...]."""
  return state.pipeline_state.info[_KEY]["values"]


def is_factor(name: str) -> bool:
  """Returns whether a name is that of a factor, which multiplies."""
  factor = factors.FACTORS.get(_kind(name))
  return factor is not None and factor.multiplies


def _neutral(name: str, drawn: Range) -> float:
  """Returns a range's number that changes least: 1 of factors, 0 of others."""
  low, high = ranges.bounds(drawn)
  nothing = high if name == "push_interval" else float(is_factor(name))
  return min(max(nothing, low), high)


def _kind(name: str) -> str:
  """Returns what a name, "mass" or "mass/torso", is of."""
  return name.partition("/")[0]


def _check_bounds(name: str, low: float, high: float) -> None:
  """Refuses a name that is unknown, or numbers that make no sense for it."""
  kind = _kind(name)
  known = [*factors.FACTORS, *motions.MOTIONS, *_SENSING]
  is_whole = kind in _SENSING or kind.startswith("push")
  if kind not in known or (is_whole and name != kind):
    raise ValueError(
      f"randomize={name!r} is unknown; {names.nearest_name(kind, known)}")
  if kind in _ABOVE_0 and low <= 0:
    what = "factors" if is_factor(name) else "numbers"
    raise ValueError(
      f"randomize={name!r} reaches down to {low:g}; give {what} above 0.")
  if kind in ("slope_x", "slope_y") and max(-low, high) >= 90:
    raise ValueError(
      f"randomize={name!r} reaches from {low:g} to {high:g} degrees; give "
      "slopes between -90 and 90.")
