"""Tasks of one's own robots: pure functions of what a robot can tell."""

import functools
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from qdrl_haiku.environments.interface import Descriptor
from qdrl_haiku.environments.robots import observed
from qdrl_haiku.environments.robots.model import RobotModel
from qdrl_haiku.environments.robots.observed import Observed
from qdrl_haiku.hyperparameter import Hyperparameter
from qdrl_haiku.types import Array, Key

if TYPE_CHECKING:
  import mujoco
  from brax.base import State as Physics

_EFFORT = {
  "effort": Hyperparameter(0.05, "what the mean square of actions costs")}
_Values = Mapping[str, Array | float]
_FREE, _BALL, _SLIDE = 0, 1, 2
_WIDTHS = {_FREE: (7, 6), _BALL: (4, 3)}
_TOUCH_DISTANCE = 1e-3


class RobotState:
  """Tells where a robot's parts are at one moment, and how they move.

  Attributes:
    model: the robot.
    q: [Q], generalized positions.
    qd: [V], generalized velocities.
    goal: [G], what `Task.draw_goal` drew for this episode, or [0].
    step_seconds: how long an action lasts.
  """

  def __init__(
    self, model: RobotModel, physics: "Physics", goal: Array,
    step_seconds: float,
  ) -> None:
    self.model = model
    self.step_seconds = step_seconds
    self.q: Array = physics.q
    self.qd: Array = physics.qd
    self.goal = goal
    self._physics = physics

  def position(self, name: str) -> Array:
    """Returns where a body, a site or a geom is: [3], in metres."""
    link, offset = self._place(name)
    x, _ = self._links
    return x.pos[link] + _rotate(offset, x.rot[link])

  def rotation(self, name: str) -> Array:
    """Returns how a body is turned: a quaternion [4], w first."""
    return self._links[0].rot[self._place(name)[0]]

  def velocity(self, name: str) -> Array:
    """Returns the velocity of a body's origin: [3], in metres per second."""
    return self._links[1].vel[self._place(name)[0]]

  def angular_velocity(self, name: str) -> Array:
    """Returns how fast a body turns: [3], in radians per second."""
    return self._links[1].ang[self._place(name)[0]]

  def upright(self, name: str) -> Array:
    """Returns the share of a body's own z axis that points up: [-1, 1]."""
    up = jnp.array([0.0, 0.0, 1.0])
    return _rotate(up, self.rotation(name))[2]

  def joint(self, name: str) -> Array:
    """Returns a joint's position: []; of a free joint [7], of a ball [4]."""
    return self._joint(name, self.q, "qposadr", 0)

  def joint_velocity(self, name: str) -> Array:
    """Returns a joint's velocity: []; of a free joint [6], of a ball [3]."""
    return self._joint(name, self.qd, "dofadr", 1)

  def sensor(self, name: str) -> Array:
    """Returns what a sensor of the file measures: [N]; in mjx alone.

    Forces and accelerations are those of the last time step.
    """
    _, sensor = self.model.element(["sensor"], name)
    if self.model.backend not in ("mjx", "warp"):
      raise ValueError(
        f"{self.model.path}: the task reads the sensor {name!r}, which "
        f"{self.model.backend} can't tell; give backend=mjx.")
    start = int(sensor.adr[0])
    return self._physics.sensordata[start : start + int(sensor.dim[0])]

  def touches(self, geom: str, other: str | None = None) -> Array:
    """Returns whether a geom touches another, or the world: bool []."""
    first = int(self.model.element(["geom"], geom)[1].id)
    others = np.flatnonzero(self.model.mj_model.geom_bodyid == 0)
    if other is not None:
      others = np.array([self.model.element(["geom"], other)[1].id])
    found = self._contacts
    if found is None:  # No two shapes can ever touch.
      return jnp.array(False)
    a, b = jnp.asarray(found.geom1), jnp.asarray(found.geom2)
    is_pair = (a == first) & jnp.isin(b, others)
    is_pair |= (b == first) & jnp.isin(a, others)
    return jnp.any(is_pair & (found.dist < _TOUCH_DISTANCE))

  @functools.cached_property
  def _contacts(self) -> Any:
    from brax import contact

    return contact.get(self.model.sys, self._physics.x)

  @functools.cached_property
  def _links(self) -> tuple[Any, Any]:
    """Where all links are and how they move, and last the world itself."""
    from brax import base

    return (
      self._physics.x.concatenate(base.Transform.zero((1,))),
      self._physics.xd.concatenate(base.Motion.zero((1,))))

  def _place(self, name: str) -> tuple[int, Array]:
    """Returns the link of a part, -1 of the world, and where in it it is."""
    kind, part = self.model.element(["body", "site", "geom"], name)
    if kind == "body":
      return int(part.id) - 1, jnp.zeros(3)
    return int(part.bodyid[0]) - 1, jnp.asarray(part.pos)

  def _joint(self, name: str, values: Array, address: str, which: int) -> Array:
    """Returns a joint's part of the generalized coordinates."""
    _, joint = self.model.element(["joint"], name)
    start, kind = int(getattr(joint, address)[0]), int(joint.type[0])
    if kind not in _WIDTHS:
      return values[start]
    return values[start : start + _WIDTHS[kind][which]]


def without_place(state: RobotState) -> Array:
  """Observes positions and velocities, but not where on the floor it is.

  Of several things, such as a robot and a ball, all places are observed.
  """
  seen = _seen_places(state.model.mj_model)
  return jnp.concatenate([state.q[seen], state.qd, state.goal])


def _seen_places(model: "mujoco.MjModel") -> np.ndarray:
  """Returns which of the positions [Q] `without_place` observes."""
  hidden: list[int] = []
  for joint in map(model.joint, range(model.njnt if model.ntree == 1 else 0)):
    start, is_flat = int(joint.qposadr[0]), abs(joint.axis[2]) < 0.5
    if joint.type[0] == _FREE:
      hidden += [start, start + 1]
    # A robot in a plane slides along it by its root.
    elif joint.type[0] == _SLIDE and is_flat and (
      joint.bodyid[0] == model.jnt_bodyid[0]
    ):
      hidden.append(start)
  return np.delete(np.arange(model.nq), hidden)


class Task(NamedTuple):
  """Says what a robot is to do; a user's function (RobotModel) -> Task.

  Attributes:
    reward: (state before, state after, action [A]) -> [].
    is_over: (state) -> bool [], whether the episode terminates.
    observe: (state) -> [O], or a dict, see `specs`.
    describe: (state) -> [D], of `descriptor`.
    descriptor: names and bounds of what `describe` returns, or None.
    draw_goal: (key) -> [G], drawn at each reset, `RobotState.goal` from then
      on.
    initial_noise: when an episode begins, the bound of uniform noise of joints,
      in radians or metres, and the standard deviation of all velocities.
    step_seconds: how long an action lasts, in seconds, as whole time steps.
    tunables: what agents may tune of the reward, such as its terms' weights, by
      name; then `reward` also takes their values [] by name.
    observed: what each of O numbers is that `observe` returns, for exports; ()
      if that isn't told.
  """

  reward: Callable[..., Array]
  is_over: Callable[[RobotState], Array] = lambda state: jnp.array(False)
  observe: Callable[[RobotState], Array] = without_place
  describe: Callable[[RobotState], Array] | None = None
  descriptor: Descriptor | None = None
  draw_goal: Callable[[Key], Array] | None = None
  initial_noise: float = 0.05
  step_seconds: float = 0.05
  tunables: Mapping[str, Hyperparameter] = MappingProxyType({})
  observed: Sequence[Observed] = ()


def all_observed(task: Task, model: RobotModel, size: int) -> list[Observed]:
  """Returns what each number that a task observes is, in their order.

  Args:
    task: whose `observed` may name them.
    model: the robot.
    size: O, of one flat vector; 0 where something else is observed.

  Raises:
    ValueError: if the task names another number of them.
  """
  known, rest = list(task.observed), "observed"
  if task.observe is without_place and not known:
    known, rest = _observed_without_place(model), "goal"
  elif known and len(known) != size:
    raise ValueError(
      f"the task of {model.path} observes {size} numbers in a vector, and "
      f"Task.observed names {len(known)}; name each, or none.")
  more = range(size - len(known))
  return [*known, *(Observed(f"{rest} {i}") for i in more)]


def _observed_without_place(model: RobotModel) -> list[Observed]:
  """Returns what `without_place` observes, but for the goal."""
  there = observed.generalized_coordinates(model.mj_model)
  number = model.mj_model.nq
  return [*(there[i] for i in _seen_places(model.mj_model)), *there[number:]]


def run(model: RobotModel) -> Task:
  """Makes the task to move along x: metres per second, less some effort.

  Its descriptor is where on the floor the root is.
  """
  root = model.root

  def reward(
    before: RobotState, after: RobotState, action: Array, tunables: _Values
  ) -> Array:
    moved = after.position(root)[0] - before.position(root)[0]
    return moved / after.step_seconds - _effort(action, tunables)

  return Task(
    reward, tunables=_EFFORT, describe=lambda state: state.position(root)[:2],
    descriptor=Descriptor(("x", "y"), (-30.0, -30.0), (30.0, 30.0)))


def stand(model: RobotModel) -> Task:
  """Makes the task to keep the root as high and as upright as it began.

  The reward is at most 1 a step.
  """
  root = model.root
  height = _initial_height(model)

  def reward(
    _: RobotState, after: RobotState, action: Array, tunables: _Values
  ) -> Array:
    is_high = jnp.clip(after.position(root)[2] / height, 0, 1)
    is_upright = (after.upright(root) + 1) / 2
    return is_high * is_upright - _effort(action, tunables)

  return Task(reward, tunables=_EFFORT)


def reach(model: RobotModel) -> Task:
  """Makes the task to bring the last body to a point that it can reach.

  The point is where the body is in a posture drawn from the joints' ranges; the
  reward is minus the distance, in metres, less some effort.
  """
  tip = model.names("body")[-1]

  def reward(
    _: RobotState, after: RobotState, action: Array, tunables: _Values
  ) -> Array:
    distance = jnp.linalg.norm(after.position(tip) - after.goal)
    return -distance - _effort(action, tunables)

  def draw_goal(key: Key) -> Array:
    from mujoco import mjx

    low, high = _ranges(model)
    q = jax.random.uniform(key, low.shape, minval=low, maxval=high)
    # Of MuJoCo: brax's own knows neither balls nor joints' `ref`.
    data = mjx.make_data(model.sys).replace(qpos=q)
    return mjx.kinematics(model.sys, data).xpos[-1]

  def observe(state: RobotState) -> Array:
    towards = state.goal - state.position(tip)
    return jnp.concatenate([without_place(state), towards])

  return Task(
    reward, observe=observe, draw_goal=draw_goal, tunables=_EFFORT, observed=[
      *_observed_without_place(model),
      *observed.along_axes("goal", "m", "world"),
      *observed.along_axes(f"from {tip} to goal", "m", "world")])


def _effort(action: Array, tunables: _Values) -> Array:
  """Returns what actions cost, by default a twentieth of their mean square."""
  return tunables["effort"] * jnp.mean(jnp.square(jnp.clip(action, -1, 1)))


def _initial_height(model: RobotModel) -> float:
  """Returns how high the root is when an episode begins, in metres."""
  import mujoco

  data = mujoco.MjData(model.mj_model)
  data.qpos[:] = model.sys.init_q
  mujoco.mj_kinematics(model.mj_model, data)
  return max(float(data.body(model.root).xpos[2]), 1e-3)


def _ranges(model: RobotModel) -> tuple[Array, Array]:
  """Returns between which positions [Q] joints move; roots stay."""
  mj_model, start = model.mj_model, jnp.asarray(model.sys.init_q)
  low, high = np.array(start), np.array(start)
  for i in range(mj_model.njnt):
    if mj_model.jnt_type[i] not in _WIDTHS:
      at = mj_model.jnt_qposadr[i]
      limits = mj_model.jnt_range[i]
      is_limited = bool(np.isfinite(limits).all()) and limits[0] < limits[1]
      low[at], high[at] = limits if is_limited else (-np.pi, np.pi)
  return jnp.asarray(low), jnp.asarray(high)


def _rotate(vector: Array, quaternion: Array) -> Array:
  """Turns a vector [3] by a quaternion [4]."""
  from brax import math

  return math.rotate(vector, quaternion)


TASKS: Mapping[str, Callable[[RobotModel], Task]] = {
  "reach": reach, "run": run, "stand": stand}
"""The tasks that any robot can have, by name."""
