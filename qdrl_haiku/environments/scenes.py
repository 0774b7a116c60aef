"""Scenes: the parts of an environment that pictures show.

A scene's `extract` takes states with any leading axes, so that rollouts, and
evaluations that record, can keep what a picture needs and nothing else.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from qdrl_haiku import specs
from qdrl_haiku.environments import point_maze
from qdrl_haiku.environments.interface import BatchedEnvironment, State
from qdrl_haiku.types import Array, Record

if TYPE_CHECKING:
  from brax.base import System


class PlaneScene(NamedTuple):
  """A plane, with the positions of states in it."""

  extract: Callable[[State], Array]  # States [...] -> positions [..., 2].
  names: tuple[str, str]  # Of the two axes.
  lower: np.ndarray  # [2], of the part of the plane that matters.
  upper: np.ndarray  # [2].
  walls: np.ndarray  # [W, 4]: x_low, y_low, x_high, y_high of rectangles.
  start: np.ndarray | None = None  # [2], where episodes begin, if known.
  goal: np.ndarray | None = None  # [2], if there is one.


class RobotScene(NamedTuple):
  """A robot of brax."""

  # States [...] -> `q` [..., Q], generalized coordinates, and of L links `pos`
  # [..., L, 3], in metres, and `rot` [..., L, 4], quaternions, w first.
  extract: Callable[[State], dict[str, Array]]
  sys: "System"  # brax's system.
  step_seconds: float  # The duration of a step of the environment.


Scene = PlaneScene | RobotScene
"""What of an environment can be drawn."""


def scene(env: BatchedEnvironment) -> Scene:
  """Returns what can be drawn of an environment, in any wrapper.

  Of `point_maze` the maze; of brax's robots the robot; of any other the plane
  of the first two axes of its state descriptor.
  """
  single = one_instance(env)
  inner = single
  while hasattr(inner, "env"):
    inner = inner.env
  is_maze = isinstance(inner, point_maze.PointMaze)
  if _is_robot(single) and hasattr(single, "dt"):
    return RobotScene(_links, single.sys, float(single.dt))
  descriptor = inner.descriptor if is_maze else env.descriptor
  if descriptor is None or descriptor.size < 2:
    has = "none" if descriptor is None else f"one of {descriptor.names[0]}"
    raise ValueError(
      "nothing of this environment can be drawn: it is neither point_maze nor "
      "a robot of brax, and needs a state descriptor of two axes (it has "
      f"{has}); give it such a Descriptor.")
  plane = PlaneScene(
    extract=lambda state: state.info["state_descriptor"][..., :2],
    names=(descriptor.names[0], descriptor.names[1]),
    lower=np.array(descriptor.lower[:2]), upper=np.array(descriptor.upper[:2]),
    walls=np.empty((0, 4)))
  if not is_maze:
    return plane
  return plane._replace(
    extract=lambda state: state.pipeline_state.pipeline_state,
    walls=inner.walls, start=inner.start, goal=inner.goal)


def robot_position(env: BatchedEnvironment) -> Callable[[State], Array] | None:
  """Returns the function from states [...] to a robot's x and y, [..., 2].

  None for other environments, and if the root can't move along x or y.
  """
  single = one_instance(env)
  if not _is_robot(single):
    return None
  # Bodies before the root can't move, such as a wall.
  model = single.sys.mj_model
  root = int(model.jnt_bodyid[0])
  if not np.any(single.sys.dof.motion.vel[model.dof_bodyid == root, :2]):
    return None
  return lambda state: _links(state)["pos"][..., root - 1, :2]


def policy_interface(env: BatchedEnvironment) -> Record:
  """Returns what a robot's policy sees and does, for use elsewhere.

  Args:
    env: any; skills are observed after all else.

  Returns:
    JSON: of any robot `step_seconds`, which an action lasts. Of a robot of a
    file also `observation`, an `Observed` for each number in their order;
    `action`, for each the actuator's name, gear and the `low` and `high` of
    its control, to which -1 and 1 are scaled; `physics`, the file and what
    simulated it, `leaves_out` what that lacks, and how many of its time steps
    an action lasts; `reset`, how episodes begin: qpos with uniform noise of
    at most `qpos_noise`, qvel with normal noise of the deviation `qvel_noise`,
    and act; `warnings`, what may fail on a real robot, and what to do.
  """
  single = one_instance(env)
  if not (_is_robot(single) and hasattr(single, "dt")):
    return {}
  found: Record = {"step_seconds": float(f"{float(single.dt):g}")}
  if not hasattr(single, "interface"):
    return found
  found |= single.interface()
  if names := found["observation"]:
    if hasattr(single, "see"):  # See `hiding`.
      places = single.see(np.arange(len(names)))
      names = [names[i] for i in places]
    skill = range(specs.observation_size(env.observation_spec) - len(names))
    found["observation"] = [
      *names, *({"name": f"skill {i}"} for i in skill)]
  return found


def one_instance(env: BatchedEnvironment) -> Any:
  """Returns the environment without skills, of one instance if there is one."""
  batched: Any = env
  while not hasattr(batched, "unwrapped") and hasattr(batched, "env"):
    batched = batched.env
  return getattr(batched, "unwrapped", batched)


def _is_robot(single: object) -> bool:
  """Returns whether an environment of one instance is one of brax's robots."""
  return hasattr(getattr(single, "sys", None), "mj_model")


def _links(state: State) -> dict[str, Array]:
  """Returns the positions of a robot's joints and links."""
  physics = state.pipeline_state.pipeline_state
  return {"q": physics.q, "pos": physics.x.pos, "rot": physics.x.rot}
