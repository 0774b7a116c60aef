"""Scenes: the parts of an environment that pictures show.

A scene's `extract` takes states with any leading axes, so that rollouts, and
evaluations that record, can keep what a picture needs and nothing else.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from qdrl_haiku import types
from qdrl_haiku.environments import point_maze
from qdrl_haiku.environments.interface import BatchedEnvironment, State


class PlaneScene(NamedTuple):
  """A plane, with the positions of states in it.

  Attributes:
    extract: states [...] -> positions [..., 2].
    names: of the two axes.
    lower: [2], of the part of the plane that matters.
    upper: [2].
    walls: [W, 4], one rectangle per row: x_low, y_low, x_high, y_high.
    start: [2], where episodes begin, or None if that is not known.
    goal: [2], or None if there is none.
  """

  extract: Callable[[State], types.Array]
  names: tuple[str, str]
  lower: np.ndarray
  upper: np.ndarray
  walls: np.ndarray
  start: np.ndarray | None = None
  goal: np.ndarray | None = None


class RobotScene(NamedTuple):
  """A robot of brax.

  Attributes:
    extract: states [...] -> `q` [..., Q], the generalized coordinates, and of
      each of the L links `pos` [..., L, 3], in metres, and `rot` [..., L, 4], a
      quaternion, w first.
    sys: brax's system.
    step_seconds: the duration of a step of the environment.
  """

  extract: Callable[[State], dict[str, types.Array]]
  sys: Any
  step_seconds: float


Scene = PlaneScene | RobotScene


def scene(env: BatchedEnvironment) -> Scene:
  """Returns the parts of an environment that can be drawn.

  Args:
    env: with skills or without.

  Returns:
    For `point_maze` the maze; for brax's robots, in any wrapper, the robot; for
    any other environment the plane of the first two axes of its state
    descriptor.

  Raises:
    ValueError: if an environment has none of these.
  """
  batched: Any = env
  # Skills are no part of the picture.
  while not hasattr(batched, "unwrapped") and hasattr(batched, "env"):
    batched = batched.env
  single: Any = getattr(batched, "unwrapped", None)
  inner = single
  while hasattr(inner, "env"):
    inner = inner.env
  is_maze = isinstance(inner, point_maze.PointMaze)
  is_robot = hasattr(getattr(single, "sys", None), "mj_model")
  if is_robot and hasattr(single, "dt"):
    return RobotScene(
      _links, single.sys, float(single.dt) * batched.action_repeat
    )
  descriptor = inner.descriptor if is_maze else env.descriptor
  if descriptor is None or descriptor.size < 2:
    has = "no state descriptor"
    if descriptor is not None:
      has = f"a state descriptor of one axis, {descriptor.names[0]}"
    raise ValueError(
      "nothing of this environment can be drawn: it is neither point_maze nor "
      f"a robot of brax, and has {has}; give it a Descriptor of two axes."
    )
  plane = PlaneScene(
    extract=lambda state: state.info["state_descriptor"][..., :2],
    names=(descriptor.names[0], descriptor.names[1]),
    lower=np.array(descriptor.lower[:2]),
    upper=np.array(descriptor.upper[:2]),
    walls=np.empty((0, 4)),
  )
  if not is_maze:
    return plane
  return plane._replace(
    extract=lambda state: state.pipeline_state.pipeline_state,
    walls=inner.walls,
    start=inner.start,
    goal=inner.goal,
  )


def _links(state: State) -> dict[str, types.Array]:
  """Returns the positions of a robot's joints and links."""
  physics = state.pipeline_state.pipeline_state
  return {"q": physics.q, "pos": physics.x.pos, "rot": physics.x.rot}
