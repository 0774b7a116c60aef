"""A point in a 2-D maze, in pure JAX: microseconds per step."""

import jax
import jax.numpy as jnp
import numpy as np

from qdrl_haiku import names
from qdrl_haiku.environments.interface import Descriptor, State
from qdrl_haiku.types import Array, Key

_BLOCK = ((-0.4, -0.4, 0.4, 0.4),)
_LAYOUTS: dict[str, tuple[tuple[float, float, float, float], ...]] = {
  "open": (),
  # An S: up, over the first wall, down, under the second, and up again.
  "maze": ((-0.4, -1.0, -0.3, 0.4), (0.3, -0.4, 0.4, 1.0)),
  # Ways around a block, above it and below, and the same with one of them shut.
  "block": _BLOCK,
  "block_above_shut": (*_BLOCK, (-0.1, 0.4, 0.1, 1.0)),
  "block_below_shut": (*_BLOCK, (-0.1, -1.0, 0.1, -0.4))}
# In the open there is a way to go in every direction.
_STARTS = {"open": (0.0, 0.0)}
_CORNER = (-0.8, -0.8)
_START_NOISE = 0.05
_GOAL = (0.8, 0.8)
MAX_STEP = 0.1
# The point keeps this far from walls. Half a step is what it takes for the
# straight line between successive positions to miss them, corners included,
# though the point moves along x first and then along y.
_CLEARANCE = MAX_STEP / 2
# Walls and goal lie on multiples of 0.05, so that walls with their clearance
# are whole grid cells.
_SPACING = 0.025


class PointMaze:
  """A point that walks through the box [-1, 1]^2 to one of its corners.

  The observation and the state descriptor are the position [2]. An action in
  [-1, 1]^2 moves the point by up to 0.1 along each axis; it slides along walls.
  The reward is the decrease of `distance`, the number of steps to the goal: at
  most 1 in the open, 2 around the end of a wall. So all who reach the goal have
  the same return, the `distance` of the start: about 38 in "maze", 8 in "open",
  and 25 around the block. Episodes never terminate.

  Attributes:
    walls: [W, 4], one rectangle per row: x_low, y_low, x_high, y_high.
    start: [2], the centre of the square in which episodes start, 0.1 wide.
    goal: [2].
  """

  observation_size = 2
  action_size = 2
  # The lowest return is about -10 in "open", of a walk to the corner opposite
  # the goal, so that 0.1 a step is enough in episodes of 100 steps and more; in
  # "maze" about -2.5, for which 25 steps are enough.
  descriptor = Descriptor(
    names=("x", "y"), lower=(-1.0, -1.0), upper=(1.0, 1.0), reward_offset=0.1)

  def __init__(self, layout: str = "maze") -> None:
    """Lays out the walls and measures the way to the goal from everywhere.

    Args:
      layout: "maze" (two walls, an S-shaped way from the corner opposite the
        goal), "open" (no walls, from the middle), "block" (two ways around a
        block), "block_above_shut" or "block_below_shut" (one of them).
    """
    if layout not in _LAYOUTS:
      fix = names.nearest_name(layout, _LAYOUTS)
      raise ValueError(f"layout={layout!r} is unknown; {fix}")
    self.walls = np.array(_LAYOUTS[layout], np.float32).reshape(-1, 4)
    self.start = np.array(_STARTS.get(layout, _CORNER), np.float32)
    self.goal = np.array(_GOAL, np.float32)
    clearance = np.array([-1, -1, 1, 1]) * _CLEARANCE
    # Rounded, for the grid to see the multiples of 0.05 that are meant.
    self._blocked = np.round(self.walls + clearance, 6).astype(np.float32)
    self._steps_to_goal = _steps_to_goal(self._blocked, self.goal)

  def reset(self, key: Key) -> State:
    """Starts near `start`; the key is consumed."""
    noise = jax.random.uniform(
      key, (2,), minval=-_START_NOISE, maxval=_START_NOISE)
    position = jnp.asarray(self.start) + noise
    return self._state(position, jnp.zeros(()))

  def step(self, state: State, action: Array) -> State:
    """Moves the point by an action [2], clipped to [-1, 1].

    `metrics["distance"]` of the next state is its distance in steps.
    """
    before = state.pipeline_state
    position = before
    for axis in (0, 1):
      move = MAX_STEP * jnp.clip(action[axis], -1, 1)
      position = position.at[axis].set(self._slide(position, move, axis))
    nearer = self.distance(before) - self.distance(position)
    return self._state(position, nearer)

  def distance(self, position: Array) -> Array:
    """Returns how many steps away from a position [2] the goal is, a float.

    Interpolated between grid points 0.025 apart (off by at most 1/16 in the
    open), from a breadth-first search around the walls (Moore, 1959) with the
    moves of a chess king, which are those of a point that is equally fast along
    both axes at once.
    """
    cells = self._steps_to_goal.shape[0] - 1
    scaled = (position + 1) / _SPACING
    low = jnp.clip(jnp.floor(scaled).astype(jnp.int32), 0, cells - 1)
    x, y = scaled - low
    steps = jnp.asarray(self._steps_to_goal)
    corners = jax.lax.dynamic_slice(steps, low, (2, 2))
    return jnp.stack([1 - x, x]) @ corners @ jnp.stack([1 - y, y])

  def _slide(self, position: Array, move: Array, axis: int) -> Array:
    """Returns the coordinate after a move along one axis, up to a wall."""
    here, across = position[axis], position[1 - axis]
    low, high = self._blocked[:, axis], self._blocked[:, axis + 2]
    in_the_way = (across > self._blocked[:, 1 - axis]) & (
      across < self._blocked[:, 3 - axis])
    # Comparisons and copies only: no rounding can carry the point into a wall.
    above = jnp.where(in_the_way & (here <= low), low, 1)
    below = jnp.where(in_the_way & (here >= high), high, -1)
    return jnp.clip(here + move, below.max(initial=-1), above.min(initial=1))

  def _state(self, position: Array, reward: Array) -> State:
    """Returns the state at a position."""
    return State(
      pipeline_state=position, obs=position, reward=reward, done=jnp.zeros(()),
      metrics={"distance": self.distance(position)},
      info={"state_descriptor": position})


def _steps_to_goal(blocked: np.ndarray, goal: np.ndarray) -> np.ndarray:
  """Returns the steps to the goal from each point of a grid over the box."""
  size = round(2 / _SPACING) + 1
  x, y = np.meshgrid(*[np.linspace(-1, 1, size)] * 2, indexing="ij")
  free = np.ones((size, size), bool)
  for x_low, y_low, x_high, y_high in blocked:
    # A boundary may be walked on, whichever way its float32 was rounded.
    free &= (
      (x < x_low + 1e-6) | (x > x_high - 1e-6)
      | (y < y_low + 1e-6) | (y > y_high - 1e-6))
  # A diagonal move may not cut the corner of a wall.
  moves = [
    (dx, dy, free & _shift(free, dx, 0) & _shift(free, 0, dy))
    for dx in (-1, 0, 1) for dy in (-1, 0, 1)]
  reached = np.zeros((size, size), bool)
  reached[tuple(np.round((goal + 1) / _SPACING).astype(int))] = True
  steps = np.zeros((size, size), np.float32)
  count = 0
  while not reached[free].all():
    count += 1
    spread = np.logical_or.reduce(
      [_shift(reached, dx, dy) & allowed for dx, dy, allowed in moves])
    steps[spread & ~reached] = count * _SPACING / MAX_STEP
    reached = spread
  return steps


def _shift(cells: np.ndarray, dx: int, dy: int) -> np.ndarray:
  """Shifts square cells [G, G] by up to one cell, and fills with False."""
  size = len(cells)
  return np.pad(cells, 1)[1 - dx :, 1 - dy :][:size, :size]
