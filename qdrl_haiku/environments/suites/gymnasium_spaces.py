"""Says what of Gymnasium's spaces can be learned with.

Images of uint8 are observed as they are, other Boxes and MultiBinaries as flat
vectors of floats, Discretes one-hot, Dicts and Tuples as trees of arrays.
Actions are the vector of a Box, scaled from [-1, 1], or one of a Discrete.
"""

import math
from typing import Any

import numpy as np

from qdrl_haiku import specs
from qdrl_haiku.types import Tree

Space = Any  # Of Gymnasium, whose common class knows no bounds.

# Bounds this far apart or farther count as no bounds: they are the largest
# floats or integers, or the values that MuJoCo calls unstable.
_UNBOUNDED = 1e10
# Of Gymnasium's wrappers, those that make of a space what can be learned with.
_WRAPPERS = {
  "observation_space": "gymnasium.wrappers.FlattenObservation",
  "action_space": "gymnasium.wrappers.TransformAction"}


def tree(space: Space) -> Tree:
  """Returns the tree of spaces that a Dict or a Tuple has."""
  from gymnasium import spaces

  if isinstance(space, spaces.Dict):
    return {name: tree(x) for name, x in space.items()}
  return tuple(map(tree, space)) if isinstance(space, spaces.Tuple) else space


def observation_spec(env_id: str, space: Space) -> specs.Array:
  """Returns the spec of observations from a space, or refuses the space."""
  from gymnasium import spaces

  if isinstance(space, spaces.Discrete | spaces.MultiBinary):
    return specs.Array((int(spaces.flatdim(space)),), lower=0, upper=1)
  _check_box(
    env_id, "observation_space", space,
    "a Discrete, MultiBinary, Dict or Tuple of them")
  is_image = space.dtype == np.uint8 and len(space.shape) > 1
  return specs.Array(
    space.shape if is_image else (math.prod(space.shape),),
    np.uint8 if is_image else np.float32,
    float(space.low.min()), float(space.high.max()))


def as_array(
  space: Space, spec: specs.Array, observed: Tree, leading: tuple[int, ...]
) -> np.ndarray:
  """Returns a copy [*leading, *shape] of what is observed.

  `observed` is what a `space` gave for `leading` instances; `spec` tells shape
  and dtype.
  """
  if hasattr(space, "start"):  # A Discrete one.
    observed = np.arange(space.n) == (
      np.asarray(observed)[..., None] - space.start)
  return np.array(observed, spec.dtype).reshape(*leading, *spec.shape)


def action_spec(env_id: str, space: Space) -> specs.Action:
  """Returns the spec of actions for a space, or refuses the space."""
  from gymnasium import spaces

  if isinstance(space, spaces.Discrete):
    return specs.Discrete(int(space.n))
  _check_box(env_id, "action_space", space, "a Discrete")
  return specs.Continuous(math.prod(space.shape))


def scale_action(action: np.ndarray, space: Space) -> np.ndarray:
  """Scales actions from [-1, 1] to a Box; each integer has an equal share."""
  if not space.shape:  # A Discrete one, with a first number.
    return action + space.start
  # NaN is of an agent that has diverged.
  action = np.nan_to_num(action.reshape(-1, *space.shape).astype(np.float64))
  share = (np.clip(action, -1, 1) + 1) / 2
  if space.dtype.kind == "f":
    low, high = (x.astype(np.float64) for x in (space.low, space.high))
    return (low + share * (high - low)).astype(space.dtype)
  first, last = (x.astype(np.int64) for x in (space.low, space.high))
  steps = np.floor(share * (last - first + 1)).astype(np.int64)
  return np.minimum(first + steps, last).astype(space.dtype)


def _check_box(env_id: str, name: str, space: Space, other: str) -> None:
  """Refuses a space that is no Box which can be learned with."""
  from gymnasium import spaces

  problem = ""
  if not isinstance(space, spaces.Box):
    problem = f"is {space}; only a Box or {other} can be learned with"
  elif 0 in space.shape:
    problem = f"has shape {space.shape}, which is empty"
  elif name == "action_space":
    # Halves, since the whole may be infinite.
    low, high = (x.astype(np.float64) for x in (space.low, space.high))
    has_bounds = space.bounded_below & space.bounded_above
    has_bounds &= high / 2 - low / 2 < _UNBOUNDED / 2
    for axis in np.argwhere(~has_bounds)[:1].tolist():
      problem = (
        "has no bounds, to which -1 and 1 could be scaled: its axis "
        f"{axis} goes from {low[tuple(axis)]} to {high[tuple(axis)]}")
  if problem:
    raise ValueError(
      f"the {name} of 'gymnasium:{env_id}' {problem}. In a module of yours, "
      "gymnasium.register('Mine-v0', ...) a function that wraps it in "
      f"{_WRAPPERS[name]}, then give 'gymnasium:your_module:Mine-v0'.")
