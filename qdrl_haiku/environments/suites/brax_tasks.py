"""Tasks on brax's robots whose behaviour descriptors tell policies apart.

  <robot>_uni: walk forwards. Descriptor: each foot's share of time on the
    ground (Cully et al., "Robots that can adapt like animals", Nature 2015).
  <robot>_omni: go anywhere; the reward is for staying upright with little
    effort, not for going forwards. Descriptor: the final position.
  ant_trap: walk forwards, past a U-shaped wall that is open towards the start
    and catches policies that only follow the reward. Descriptor: the final
    position.

Bounds, in metres, and reward offsets are QDax's.
"""

import copy
import importlib.resources
from collections.abc import Sequence
from typing import TYPE_CHECKING
from xml.etree import ElementTree

import jax.numpy as jnp

from qdrl_haiku.environments import interface, wrappers
from qdrl_haiku.environments.interface import Descriptor, Objectives, State
from qdrl_haiku.types import Array

if TYPE_CHECKING:
  from brax.base import System
  from brax.envs import PipelineEnv

# In metres. brax's spring and positional physics push only bodies that
# penetrate the ground, so that a foot at rest trembles, up to 0.4 mm above it.
_TOUCH_DISTANCE = 1e-3
OMNI_REWARD_OFFSETS: dict[str, float] = {"ant": 3.0, "humanoid": 0.0}
_TRAP_DESCRIPTOR = Descriptor(
  names=("x", "y"), lower=(0.0, -8.0), upper=(30.0, 8.0), reward_offset=3.38)
# Beams of 1 m that lie on the ground, from (x, y) to (x, y), in metres. The ant
# can't climb over them: it is stopped as unhealthy at a height of 1 m.
WALLS: dict[str, tuple[tuple[float, float], tuple[float, float]]] = {
  "trap_left": ((7.0, 3.0), (12.0, 3.0)),
  "trap_back": ((12.0, 3.0), (12.0, -3.0)),
  "trap_right": ((12.0, -3.0), (7.0, -3.0))}
WALL_RADIUS = 0.5
# In brax's ant only the feet collide, with the ground alone. The walls are to
# stop the torso and the legs below the ankles, which touch nothing else.
_STOPPED = (
  "torso_geom", "left_ankle_geom", "right_ankle_geom", "third_ankle_geom",
  "fourth_ankle_geom")
_WALL_BIT = "2"
# Our names of the feet, with brax's names of their geoms, and reward offsets.
# The ant's offset isn't enough for every policy: its reward falls to about -4.3
# a step with motors at full power all the time.
UNI_ROBOTS: dict[str, tuple[dict[str, str], float]] = {
  # The ant walks along x, which its own names for its legs do not agree with.
  "ant": (
    {
      "front_left_foot": "left_foot_geom", "back_left_foot": "right_foot_geom",
      "back_right_foot": "third_foot_geom",
      "front_right_foot": "fourth_foot_geom"},
    3.24),
  "halfcheetah": ({"back_foot": "bfoot", "front_foot": "ffoot"}, 9.231),
  "hopper": ({"foot": "foot_geom"}, 0.9),
  "humanoid": ({"left_foot": "left_foot", "right_foot": "right_foot"}, 0.0),
  "walker2d": (
    {"left_foot": "foot_left_geom", "right_foot": "foot_geom"}, 1.413)}
# What Pierrot et al. (2022) and Janmohamed et al. (2023) measure hypervolumes
# from, per step of 1,000; of the humanoid, its motors at full power. What is
# forward is all of the reward but the price of control.
UNI_REFERENCES: dict[str, tuple[float, float]] = {
  "ant": (-0.35, -4.5), "halfcheetah": (-2.0, -0.8), "hopper": (-0.05, -0.002),
  "humanoid": (0.0, -0.272), "walker2d": (-0.21, -0.015)}


def task_from_height(
  env: "PipelineEnv", initial_height: float
) -> "PipelineEnv":
  """Returns a robot of brax whose root begins at another height, in metres.

  brax's ant begins in the floor, so MJX throws one in six to a height that ends
  its episode.
  """
  if env.sys.link_types[0] != "f":
    raise ValueError(
      f"initial_height={initial_height} has no effect: the root of "
      f"{type(env).__name__} can't move freely; leave it out.")
  env = copy.copy(env)
  init_q = jnp.asarray(env.sys.init_q).at[2].set(initial_height)
  env.sys = env.sys.replace(init_q=init_q)
  return env


def uni_task(env: "PipelineEnv", robot: str) -> wrappers.Wrapper:
  """Returns a robot that reports which feet touch the ground."""
  feet, offset = UNI_ROBOTS[robot]
  size = len(feet)
  descriptor = Descriptor(
    tuple(feet), (0.0,) * size, (1.0,) * size, interface.mean_descriptor,
    offset)
  touching = ground_contact(env.sys, list(feet.values()))
  cost = "reward_quadctrl" if robot == "humanoid" else "reward_ctrl"

  def with_costs(state: State) -> State:
    control = state.metrics[cost]
    both = jnp.stack([state.reward - control, control])
    return state.replace(info=state.info | {"objectives": both})

  env = wrappers.Wrapper(env, with_costs, objectives=Objectives(
    ("forward", "control"), UNI_REFERENCES[robot]))
  return wrappers.with_descriptor(env, touching, descriptor)


def ground_contact(
  sys: "System", geoms: Sequence[str]
) -> wrappers.StateDescriptorFn:
  """Returns a function that tells which parts of a robot touch the ground."""
  from brax import contact  # As the physics finds them, once per step.

  model = sys.mj_model
  floor = model.geom("floor").id
  parts = jnp.array([model.geom(name).id for name in geoms])[:, None]

  def touching(state: State) -> Array:
    found = contact.get(sys, state.pipeline_state.x)
    a, b = jnp.asarray(found.geom1), jnp.asarray(found.geom2)
    is_parts = (a == floor) & (b == parts) | (b == floor) & (a == parts)
    touches = is_parts & (found.dist < _TOUCH_DISTANCE)
    return touches.any(axis=1).astype(jnp.float32)

  return touching


def omni_task(env: "PipelineEnv", robot: str) -> wrappers.Wrapper:
  """Returns a robot that may go anywhere, and reports where it is."""
  descriptor = Descriptor(
    ("x", "y"), (-30.0, -30.0), (30.0, 30.0),
    reward_offset=OMNI_REWARD_OFFSETS[robot])
  anywhere = wrappers.Wrapper(env, lambda state: state.replace(
    reward=state.reward - state.metrics["forward_reward"]))
  return wrappers.with_descriptor(anywhere, _torso_position, descriptor)


def _torso_position(state: State) -> Array:
  """Returns where a robot of brax is, [2]."""
  return state.pipeline_state.x.pos[0, :2]


def trap_task(env: "PipelineEnv") -> wrappers.Wrapper:
  """Returns brax's ant in front of the trap; it also observes its position."""
  from brax.io import mjcf

  env = copy.copy(env)
  # brax's constructor has chosen the time step, the solver and the strength
  # of the motors for the backend.
  env.sys = mjcf.loads(_trap_model()).replace(
    opt=env.sys.opt, actuator=env.sys.actuator, init_q=env.sys.init_q)

  def with_position(state: State) -> State:
    low, high = jnp.array([_TRAP_DESCRIPTOR.lower, _TRAP_DESCRIPTOR.upper])
    position = (2 * _torso_position(state) - low - high) / (high - low)
    return state.replace(obs=jnp.concatenate([position, state.obs]))

  return wrappers.with_descriptor(
    wrappers.Wrapper(env, with_position), _torso_position, _TRAP_DESCRIPTOR)


def _trap_model() -> str:
  """Returns brax's model of the ant with the walls."""
  assets = importlib.resources.files("brax") / "envs" / "assets"
  root = ElementTree.fromstring((assets / "ant.xml").read_text())
  geoms = {geom.get("name"): geom for geom in root.iter("geom")}
  for name in _STOPPED:
    geoms[name].set("contype", _WALL_BIT)
  world = root.find("worldbody")
  assert world is not None
  for name, ends in WALLS.items():
    ElementTree.SubElement(
      world, "geom", name=name, type="capsule", conaffinity=_WALL_BIT,
      size=str(WALL_RADIUS),
      fromto=" ".join(f"{x} {y} {WALL_RADIUS}" for x, y in ends))
  return ElementTree.tostring(root, encoding="unicode")
