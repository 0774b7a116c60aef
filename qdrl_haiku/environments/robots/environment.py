"""The environment of a robot and a task."""

import importlib
import inspect
import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from qdrl_haiku import checks, names
from qdrl_haiku.environments.interface import State
from qdrl_haiku.environments.robots import tasks, warp
from qdrl_haiku.environments.robots.model import (
  RobotModel,
  element_names,
  read_robot,
)
from qdrl_haiku.environments.robots.tasks import RobotState, Task
from qdrl_haiku.types import Array, Key

# What the functions of a task are called with.
_CALLED_WITH = {
  "reward": ("before", "after", "action"), "is_over": ("state",),
  "observe": ("state",), "describe": ("state",), "draw_goal": ("key",)}


class Robot:
  """One robot with a task, as one instance of an environment.

  Attributes:
    model: the robot.
    backend: the physics that simulates it.
    sys: brax's system, as in brax's environments.
    task: what the robot is to do.
    observed: what each number of one flat vector is; [] of other observations.
    dt: how long an action lasts, in seconds.
    note: which physics it was given, and why; a line each.
    advice: what may help where physics explodes.
  """

  observation_spec = None  # What the task observes.

  def __init__(self, model: RobotModel, task: Task) -> None:
    self.model = model
    self.backend = model.backend
    self.sys = model.sys
    self.task = task
    self.tunables = task.tunables
    timestep = float(model.mj_model.opt.timestep)
    number = self._num_substeps = max(1, round(task.step_seconds / timestep))
    self.dt = number * timestep
    self.note = f"physics of {model.path}: {model.backend}, {model.reason}"
    if not math.isclose(self.dt, task.step_seconds, rel_tol=1e-6):
      self.note += (
        f"\nan action lasts {self.dt:g} s, {number} x {timestep:g} s, and not "
        f"step_seconds={task.step_seconds:g}")
    self.advice = (
      f"{model.path} is simulated by {model.backend} with a time step of "
      f"{timestep:g} s; try <option timestep='{timestep / 2:g}'/>, or another "
      "backend.")
    self._pipeline: Any = (
      warp.WarpPhysics(self.sys) if model.backend == "warp"
      else importlib.import_module(f"brax.{model.backend}.pipeline"))
    limits = np.array(model.mj_model.actuator_ctrlrange, np.float32)
    # Without a range an actuator takes what the action is.
    has_range = np.isfinite(limits).all(axis=1) & (limits[:, 0] < limits[:, 1])
    limits[~has_range] = (-1.0, 1.0)
    self._low, self._high = limits.T
    self.action_size: int = int(model.mj_model.nu)
    self.descriptor = task.descriptor
    # Refuses a task that asks for what the robot lacks.
    seen = jax.eval_shape(
      self.reset, jax.eval_shape(lambda: jax.random.key(0))).obs
    size = seen.size if getattr(seen, "ndim", 0) == 1 else 0
    self.observed = tasks.all_observed(task, model, size)
    # What agents may not see, see `hiding.what_is_seen`.
    speeds = [i for i, x in enumerate(self.observed) if x.field == "qvel"]
    self.observation_names = {"velocity": speeds} if speeds else {}

  def reset(self, rng: Key) -> State:
    """Draws an initial state."""
    q_key, qd_key, goal_key = jax.random.split(rng, 3)
    noise = self.task.initial_noise
    mj_model, is_joint = self.model.mj_model, self._is_joint()
    q = jnp.asarray(self.sys.init_q)
    q += noise * is_joint * jax.random.uniform(q_key, q.shape, minval=-1.0)
    qd = noise * jax.random.normal(qd_key, (self.sys.qd_size(),))
    begin: dict[str, Array] = {}
    if mj_model.nkey:
      qd += jnp.asarray(mj_model.key_qvel[0], jnp.float32)
      if mj_model.na:  # Which mjx alone has.
        begin["act"] = jnp.asarray(mj_model.key_act[0], jnp.float32)
    draw_goal = self.task.draw_goal
    goal = jnp.zeros(0) if draw_goal is None else draw_goal(goal_key)
    physics = self._pipeline.init(self.sys, q, qd, **begin)
    state, zero = RobotState(self.model, physics, goal, self.dt), jnp.zeros(())
    return State(
      physics, self.task.observe(state), zero, zero, info=self._info(state))

  def step(
    self, state: State, action: Array,
    tunables: Mapping[str, Array | float] = MappingProxyType({}),
  ) -> State:
    """Advances by one step.

    Args:
      state: of one robot.
      action: [A], in [-1, 1], scaled to the ranges of its actuators.
      tunables: values [] by name; the others have their defaults.
    """
    weights: dict[str, Any] = {
      name: x.default for name, x in self.tunables.items()}
    more = [weights | dict(tunables)] if weights else []
    action = jnp.clip(action, -1.0, 1.0)
    control = self._low + (action + 1) / 2 * (self._high - self._low)

    physics = self._simulated(state.pipeline_state, control)
    before, after = (
      RobotState(self.model, x, state.info["goal"], self.dt)
      for x in (state.pipeline_state, physics))
    return state.replace(
      pipeline_state=physics, obs=self.task.observe(after),
      reward=jnp.asarray(
        self.task.reward(before, after, action, *more), jnp.float32),
      done=jnp.asarray(self.task.is_over(after), jnp.float32),
      info=self._info(after))

  def _simulated(self, physics: Any, control: Array) -> Any:
    """Returns the physics when an action has lasted."""
    if self.backend == "warp":
      return self._pipeline.advance(
        self.sys, physics, control, self._num_substeps)
    physics, _ = jax.lax.scan(
      lambda x, _: (self._pipeline.step(self.sys, x, control), None), physics,
      length=self._num_substeps)
    if self.backend == "mjx":
      physics = _with_current_sensors(self.sys, physics)
    return physics

  def interface(self) -> dict[str, Any]:
    """Returns what a policy sees and does; see `policy_interface`."""
    model, noise = self.model.mj_model, self.task.initial_noise
    path, left_out = self.model.path, self.model.left_out
    missing = " and no ".join(
      x for x in ("damping", "armature")
      if x in left_out or not getattr(model, f"dof_{x}").any())
    fix = "train with --backend=mjx" if left_out else "add them to the file"
    moved = [  # What a motor without a name moves.
      model.joint(i).name if kind == 0 else "" for kind, i in zip(
        model.actuator_trntype, model.actuator_trnid[:, 0], strict=True)]
    actions = zip(
      map(lambda x, y: x or y, element_names(model, "actuator"), moved),
      _plain(self._low), _plain(self._high), _plain(model.actuator_gear[:, 0]),
      strict=True)
    qvel, act = np.zeros(model.nv), np.zeros(model.na)
    if model.nkey:
      qvel, act = model.key_qvel[0], model.key_act[0]
    return {
      "observation": [x._asdict() for x in self.observed],
      "action": [
        dict(zip(("name", "low", "high", "gear"), x, strict=True))
        for x in actions],
      "physics": {
        "file": path, "simulator": self.backend, "leaves_out": left_out,
        "time_step": float(model.opt.timestep),
        "time_steps_per_action": self._num_substeps},
      "reset": {
        "qpos": _plain(self.sys.init_q),
        "qpos_noise": _plain(noise * self._is_joint()),
        "qvel": _plain(qvel), "qvel_noise": [noise] * model.nv,
        "act": _plain(act)},
      "warnings": [
        f"{path}: in training its joints had no {missing}, which those of real "
        f"robots have; {fix}."] * bool(missing)}

  def _is_joint(self) -> np.ndarray:
    """Says which positions [Q] get noise: a free root might be in the floor."""
    model = self.model.mj_model
    is_joint = np.zeros(model.nq, np.float32)
    is_joint[model.jnt_qposadr[model.jnt_type >= 2]] = 1.0  # Hinges and slides.
    return is_joint

  def _info(self, state: RobotState) -> dict[str, Array]:
    """Returns what goes on to the next step, and the descriptor."""
    info = {"goal": state.goal}
    if self.task.describe is not None:
      info["state_descriptor"] = self.task.describe(state)
    return info


def _plain(x: Any) -> list[float]:
  """Returns the numbers of a vector without float32's rounding, for JSON."""
  return [float(f"{number:.7g}") for number in np.asarray(x).tolist()]


def _with_current_sensors(sys: Any, physics: Any) -> Any:
  """Returns MJX's state with places, speeds and sensors of its `q` and `qd`.

  MuJoCo's step ends with those of before; forces and accelerations stay so.
  """
  from brax import base
  from mujoco import mjx

  for compute in (
    mjx.kinematics, mjx.com_pos, mjx.camlight, mjx.tendon, mjx.transmission,
    mjx.sensor_pos, mjx.fwd_velocity, mjx.sensor_vel,
  ):
    physics = compute(sys, physics)
  turned = base.Transform(pos=physics.xpos[1:], rot=physics.xquat[1:])
  centre = physics.subtree_com[sys.body_rootid[1:]]
  moved = base.Transform.create(pos=turned.pos - centre).vmap().do(
    base.Motion(vel=physics.cvel[1:, 3:], ang=physics.cvel[1:, :3]))
  return physics.replace(x=turned, xd=moved)


def from_mjcf(
  path: str, task: str | Callable[[RobotModel], Task] = "run", *,
  backend: str | None = None,
) -> Robot:
  """Makes an environment of a robot's file and a task.

  Actions in [-1, 1] are scaled to the actuators' `ctrlrange`.

  Args:
    path: of MuJoCo's XML, or of a URDF.
    task: run, stand or reach; or "package.module:function", or that function,
      which makes a `Task` for a `RobotModel`.
    backend: of brax's physics; see `read_robot`.

  Returns:
    One instance, which `create` takes as `env_name`.
  """
  make_task = task
  if isinstance(task, str):
    if task not in tasks.TASKS and ":" not in task:
      raise ValueError(
        f"task={task!r} is unknown; "
        f"{names.nearest_name(task, tasks.TASKS)} Your own "
        "is given as 'package.module:function'.")
    make_task = tasks.TASKS.get(task) or names.load_named_function(task)
  model = read_robot(path, backend)
  assert callable(make_task)
  _check_takes(f"task={task!r}", make_task, "model")
  made = make_task(model)
  if not isinstance(made, Task):
    raise ValueError(
      f"task={task!r} returns {type(made).__name__}; return an "
      "environments.Task.")
  if not (0 < made.step_seconds < math.inf and made.initial_noise >= 0):
    raise ValueError(
      f"task={task!r} has step_seconds={made.step_seconds} and initial_noise="
      f"{made.initial_noise}; give a time above 0 and a noise of at least 0.")
  if (made.describe is None) != (made.descriptor is None):
    raise ValueError(
      f"task={task!r} has only one of describe and descriptor; give both.")
  for name, parameters in _CALLED_WITH.items():
    if name == "reward" and made.tunables:
      parameters += ("tunables",)
    if function := getattr(made, name):
      _check_takes(f"task={task!r}: {name}", function, *parameters)
  return Robot(model, made)


def _check_takes(
  what: str, function: Callable[..., Any], *parameters: str
) -> None:
  """Raises ValueError if a function can't be called with so many arguments."""
  if not checks.takes_arguments(function, len(parameters)):
    raise ValueError(
      f"{what} takes {inspect.signature(function)}; let it take "
      f"({', '.join(parameters)}).")
