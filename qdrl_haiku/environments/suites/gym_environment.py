"""Gymnasium's MuJoCo robots in JAX, by MJX: the tasks of `gym_tasks`.

In float64 both step alike to 1e-12 and less, but for the contacts of capsules
that stand steeper than 60 degrees on the floor, as an ant's shins may: MJX
turns their pyramids of friction to the axes. Humanoids differ by 1e-6 a step,
since MuJoCo solves theirs by PGS, which MJX lacks, and doesn't get to the end.
"""

import copy
import importlib.resources
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from qdrl_haiku import names
from qdrl_haiku.environments import interface
from qdrl_haiku.environments.interface import Descriptor, Objectives, State
from qdrl_haiku.environments.suites import brax_loading, brax_tasks
from qdrl_haiku.environments.suites.gym_tasks import TASKS, Task
from qdrl_haiku.hyperparameter import Hyperparameter
from qdrl_haiku.types import Array, Key, Record

if TYPE_CHECKING:
  from brax.base import System
  from brax.mjx.base import State as Physics


class GymRobot:
  """One of Gymnasium's robots with its task, as one instance.

  Attributes:
    task: what the robot is to do.
    sys: brax's system; MuJoCo's model is `sys.mj_model`.
    arguments: of Gymnasium's constructor.
    tunables: those of them that weigh the reward's terms.
    dt: how long an action lasts, in seconds.
  """

  backend = "mjx"
  observation_spec = None  # What the task observes.
  descriptor: Descriptor | None = None
  objectives: Objectives | None = None

  def __init__(
    self, task: Task, sys: "System", frame_skip: int, arguments: Record,
    descriptor: str | None,
  ) -> None:
    self.task: Task = task
    self.sys: System = sys
    self.arguments: Record = arguments
    self.tunables = {
      name: Hyperparameter(float(x), f"Gymnasium's {name}.")
      for name, x in arguments.items()
      if name.endswith("_weight") or name == "healthy_reward"}
    self._frame_skip = frame_skip
    self.dt = frame_skip * float(sys.mj_model.opt.timestep)
    self.action_size = int(sys.mj_model.nu)
    self._shows_feet = descriptor == "feet"
    if descriptor == "position":
      self.descriptor = Descriptor(("x", "y"), (-30.0,) * 2, (30.0,) * 2)
    if task.robot is not None:
      self.objectives = Objectives(
        ("forward", "control"), brax_tasks.UNI_REFERENCES[task.robot])
      feet, offset = brax_tasks.UNI_ROBOTS[task.robot]
      # The ant's are its shins here.
      self._feet = np.array([[sys.mj_model.geom(
        x.replace("_foot_geom", "_ankle_geom")).id] for x in feet.values()])
      if self._shows_feet:
        self.descriptor = Descriptor(
          tuple(feet), (0.0,) * len(feet), (1.0,) * len(feet),
          interface.mean_descriptor, offset)
    state = jax.eval_shape(self.reset, jax.eval_shape(jax.random.key, 0))
    seen = jax.eval_shape(
      lambda x: task.observe(self, x), state.pipeline_state)
    parts = [name for name, x in seen.items() for _ in range(x.size)]
    # What agents may not see, see `hiding.what_is_seen`.
    self.observation_names = {
      "velocity": [i for i, x in enumerate(parts) if x in ("qvel", "cvel")]}

  def reset(self, rng: Key) -> State:
    """Draws an initial state."""
    from brax.mjx import pipeline

    q, qd = self.task.begin(
      self, rng, jnp.asarray(self.sys.init_q), self.sys.qd_size())
    # MJX makes quaternions of length 1; Gymnasium shows them as drawn.
    physics = pipeline.init(self.sys, q, qd).replace(q=q)
    return self._state(physics, physics, jnp.zeros(self.action_size), 0.0)

  def step(
    self, state: State, action: Array,
    tunables: Mapping[str, Array | float] = MappingProxyType({}),
  ) -> State:
    """Advances by one step.

    Args:
      state: of one robot.
      action: [A], in [-1, 1].
      tunables: weights of the reward's terms, [], by name, in place of the
        environment's arguments.
    """
    from brax.mjx import pipeline
    from mujoco import mjx

    low, high = jnp.asarray(self.sys.mj_model.actuator_ctrlrange).T
    control = low + (jnp.clip(action, -1.0, 1.0) + 1) / 2 * (high - low)
    physics, _ = jax.lax.scan(
      lambda x, _: (pipeline.step(self.sys, x, control), None),
      state.pipeline_state, length=self._frame_skip)
    if any("cfrc_ext" in name for name in self.arguments):
      physics = mjx.rne_postconstraint(self.sys, physics)
    tuned = copy.copy(self)
    tuned.arguments = {**self.arguments, **tunables}
    return tuned._state(state.pipeline_state, physics, control, 1.0)

  def _state(
    self, before: "Physics", after: "Physics", control: Array, paid: float
  ) -> State:
    """Returns the state after a step; nothing is paid for a reset."""
    terms = self.task.reward(self, before, after, control)
    terms = {name: paid * x for name, x in terms.items()}
    reward = jnp.sum(jnp.stack([*terms.values()]))
    info: dict[str, Array] = {}
    if self.objectives is not None:
      price = terms["reward_ctrl"]
      info["objectives"] = jnp.stack([reward - price, price])
    if self.descriptor is not None:
      info["state_descriptor"] = (
        self._touching(after) if self._shows_feet else after.q[:2])
    seen = self.task.observe(self, after)
    obs = jnp.concatenate([jnp.ravel(x) for x in seen.values()])
    done = paid * self.task.is_over(self, after)
    return State(after, obs, reward, done, terms, info)

  def _touching(self, physics: "Physics") -> Array:
    """Returns which feet the ground pushes, as MuJoCo's margins have it."""
    found, floor = physics.contact, self.sys.mj_model.geom("floor").id
    a, b = jnp.asarray(found.geom1), jnp.asarray(found.geom2)
    feet, pushes = self._feet, found.dist < found.includemargin
    is_foot = (a == floor) & (b == feet) | (b == floor) & (a == feet)
    return jnp.any(is_foot & pushes, axis=1).astype(jnp.float32)


def make_gym_robot(
  name: str, *, descriptor: str | None = None, **kwargs: Any
) -> tuple[GymRobot, int]:
  """Makes one instance of a robot of Gymnasium.

  Args:
    name: in `gym_tasks.TASKS`, such as "Hopper-v5".
    descriptor: "feet", which of them touch the ground, or "position", where on
      the floor the robot is; by default "feet" for robots with feet.
    **kwargs: of Gymnasium's constructor, such as `ctrl_cost_weight`; `xml_file`
      and `frame_skip` too.

  Returns:
    The environment, and Gymnasium's limit of steps.

  Raises:
    ValueError: if something is unknown, or unlike its default.
  """
  env_name = f"env_name='gym:{name}'"
  if name not in TASKS:
    raise ValueError(
      f"{env_name} is none of Gymnasium's tasks of MuJoCo; "
      f"{names.nearest_name(name, TASKS)} Others are 'gymnasium:{name}'.")
  task = TASKS[name]
  arguments = {
    "xml_file": task.file, "frame_skip": task.frame_skip, **task.arguments}
  known = ["feet"] * bool(task.robot) + ["position"] * (task.num_places == 2)
  if descriptor is not None and descriptor not in known:
    raise ValueError(
      f"{env_name} has no descriptor={descriptor!r}; "
      f"{names.nearest_name(descriptor, known)}")
  for argument, value in kwargs.items():
    if argument not in arguments:
      raise ValueError(
        f"{env_name} takes no {argument}={value!r}; "
        f"{names.nearest_name(argument, [*arguments, 'descriptor'])}")
    default = arguments[argument]
    if argument != "main_body" and (
      np.shape(value) != np.shape(default)
      or isinstance(value, str) != isinstance(default, str)
      or (argument == "frame_skip" and value not in range(1, 1000))
    ):
      raise ValueError(
        f"{env_name} can't take {argument}={value!r}; give one like {default}.")
  arguments |= kwargs
  sys = _read(env_name, arguments.pop("xml_file"))
  describes = descriptor or next(iter(known), None)
  try:
    robot = GymRobot(
      task, sys, arguments.pop("frame_skip"), arguments, describes)
  except (KeyError, IndexError) as error:  # MuJoCo's, of main_body.
    raise ValueError(f"{env_name}: {str(error).splitlines()[0]}") from error
  return robot, task.episode_length


def _read(env_name: str, file: str) -> "System":
  """Reads a model, as Gymnasium has it, or of one's own path."""
  try:
    assets = importlib.resources.files("gymnasium") / "envs/mujoco/assets"
  except ModuleNotFoundError as error:
    raise ValueError(
      f"{env_name} needs the models of Gymnasium; pip install "
      "'qdrl_haiku[gymnasium]'.") from error
  brax_loading.import_brax()
  import mujoco
  from brax.io import mjcf

  path = file if file.startswith(("/", ".")) else str(assets / file)
  try:
    model = mujoco.MjModel.from_xml_path(path)
    if model.opt.solver == mujoco.mjtSolver.mjSOL_PGS:
      # MJX has none. What both look for is the same.
      model.opt.solver = mujoco.mjtSolver.mjSOL_NEWTON
    sys = mjcf.load_model(model)
  except (ValueError, NotImplementedError, RuntimeError) as error:
    reason = " ".join(str(error).split()).rstrip(".")
    raise ValueError(
      f"{env_name}: xml_file={file!r} can't be simulated: {reason}.") from error
  return sys.replace(init_q=jnp.asarray(model.qpos0))
