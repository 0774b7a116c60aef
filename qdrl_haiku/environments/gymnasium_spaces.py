"""Spaces of Gymnasium: which can be learned with; how actions are scaled."""

from typing import Any

import numpy as np

# From this width on, bounds stand for none: the largest number of a float or an
# integer, or what MuJoCo calls unstable.
_UNBOUNDED = 1e10


def check(env_id: str, name: str, space: Any) -> None:
  """Checks that a space can be learned with."""
  from gymnasium import spaces

  if not isinstance(space, spaces.Box):
    raise ValueError(
      f"the {name} of 'gymnasium:{env_id}' is {space}; only a Box can be "
      f"learned with. {_as_box(env_id, name, space)}"
    )
  if 0 in space.shape:
    raise ValueError(
      f"the {name} of 'gymnasium:{env_id}' has shape {space.shape}, which is "
      "empty; only a Box with numbers can be learned with."
    )
  if name == "observation_space":
    return
  # Halves, since the whole may be infinite.
  width = space.high.astype(np.float64) / 2 - space.low.astype(np.float64) / 2
  has_bounds = space.bounded_below & space.bounded_above
  for axis in np.argwhere(~(has_bounds & (width < _UNBOUNDED / 2))).tolist():
    low, high = space.low[tuple(axis)], space.high[tuple(axis)]
    box = f"-1, 1, {space.shape}, {str(space.dtype)!r}"
    raise ValueError(
      f"the action_space of 'gymnasium:{env_id}' has no bounds, to which -1 "
      f"and 1 could be scaled: its axis {axis} goes from {low} to {high}. "
      f"{_registering(env_id, _acting(env_id, 'action', box))} There, write "
      "your own bounds instead of -1 and 1."
    )


def scaled(action: np.ndarray, space: Any) -> np.ndarray:
  """Scales actions to a Box; of integers each has an equal share of [-1, 1]."""
  # Of an agent that has diverged.
  action = np.nan_to_num(action.reshape(-1, *space.shape).astype(np.float64))
  share = (np.clip(action, -1, 1) + 1) / 2
  if space.dtype.kind != "f":
    # Each integer has an equal share of [-1, 1], the last one also its end.
    first, last = (x.astype(np.int64) for x in (space.low, space.high))
    steps = np.floor(share * (last - first + 1)).astype(np.int64)
    return np.minimum(first + steps, last).astype(space.dtype)
  low, high = (x.astype(np.float64) for x in (space.low, space.high))
  return (low + share * (high - low)).astype(space.dtype)


def _as_box(env_id: str, name: str, space: Any) -> str:
  """Says how a space becomes a Box, where one of Gymnasium's wrappers can."""
  from gymnasium import spaces

  if name == "observation_space":
    wrapper = f"FlattenObservation(gymnasium.make({env_id!r}))"
  elif isinstance(space, spaces.Discrete):
    low, high = space.start, space.start + space.n - 1
    wrapper = _acting(env_id, "action[0]", f"{low}, {high}, dtype=int")
  elif isinstance(space, spaces.MultiBinary):
    wrapper = _acting(env_id, "action", f"0, 1, {space.shape}, int")
  elif isinstance(space, spaces.MultiDiscrete):
    low, high = (
      f"numpy.array({x.tolist()})"
      for x in (space.start, space.start + space.nvec - 1)
    )
    wrapper = _acting(env_id, "action", f"{low}, {high}, dtype=int")
  else:
    return "Wrap it so that its actions are a Box, and register that."
  return _registering(env_id, wrapper)


def _acting(env_id: str, action: str, box: str) -> str:
  """Returns the code of a wrapper that acts from a Box."""
  return (
    f"TransformAction(gymnasium.make({env_id!r}), lambda action: {action}, "
    f"gymnasium.spaces.Box({box}))"
  )


def _registering(env_id: str, wrapper: str) -> str:
  """Says how an environment in a wrapper is registered, and then given."""
  name = f"My{env_id.rpartition(':')[2]}"
  return (
    f"In a module of yours, gymnasium.register({name!r}, lambda: "
    f"gymnasium.wrappers.{wrapper}); then give "
    f"'gymnasium:your_module:{name}'."
  )
