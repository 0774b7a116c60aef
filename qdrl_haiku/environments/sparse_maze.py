"""The point maze with a reward at the goal alone, and terms that shape it."""

from collections.abc import Mapping
from types import MappingProxyType

import jax.numpy as jnp

from qdrl_haiku import ranges
from qdrl_haiku.environments.interface import Descriptor, State
from qdrl_haiku.environments.point_maze import MAX_STEP, PointMaze
from qdrl_haiku.hyperparameter import Hyperparameter
from qdrl_haiku.types import Array, Key

_GOAL_RADIUS = 0.1


def _weight(of: str) -> Hyperparameter:
  """Declares the weight of a term, 0 unless agents are shaped by it."""
  return Hyperparameter(
    0.0, f"weight of {of}", high=100.0, search=ranges.LogUniform(0.01, 1.0))


class SparseMaze(PointMaze):
  """A `PointMaze` whose reward is 1 in each step that ends at the goal.

  That is within 0.1 of the goal along both axes. To learn at all where nobody
  finds it by chance, other terms may be added to the reward, by their weights:

    nearness: how much nearer the goal is than before in a straight line, in
      steps, whatever wall is in between.
    progress: how much nearer it is around the walls, as `PointMaze` rewards.
    moving: how far the point has moved, in steps.

  Terms are told in `info["reward_terms"]`.
  """

  descriptor = Descriptor(("x", "y"), (-1.0, -1.0), (1.0, 1.0))
  tunables: Mapping[str, Hyperparameter] = {
    "moving": _weight("how far the point has moved, in steps"),
    "nearness": _weight("how much nearer the goal is in a straight line"),
    "progress": _weight("how much nearer the goal is around the walls")}

  def reset(self, rng: Key) -> State:
    """Draws an initial state."""
    state = super().reset(rng)
    terms = dict.fromkeys(("rest", *self.tunables), state.reward)
    return state.replace(info=state.info | {"reward_terms": terms})

  def step(
    self, state: State, action: Array,
    tunables: Mapping[str, Array | float] = MappingProxyType({}),
  ) -> State:
    """Moves the point by an `action` [2], clipped to [-1, 1], from a `state`.

    `tunables` are the weights of the reward's terms, [], by name; 0 by default.
    """
    before = state.pipeline_state
    state = super().step(state, action)
    after, goal = state.pipeline_state, jnp.asarray(self.goal)
    far_before, far, moved = (
      jnp.max(jnp.abs(x)) for x in (before - goal, after - goal, after - before)
    )
    terms = {
      "moving": moved / MAX_STEP, "nearness": (far_before - far) / MAX_STEP,
      "progress": state.reward}
    reward = at_goal = (far <= _GOAL_RADIUS).astype(jnp.float32)
    for name, term in terms.items():
      reward += tunables.get(name, 0.0) * term
    return state.replace(
      reward=reward,
      info=state.info | {"reward_terms": terms | {"rest": at_goal}})
