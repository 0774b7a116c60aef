"""Gymnasium's MuJoCo tasks, version 5: what is seen, what is paid, what ends.

Arguments, their defaults, parts of observations and terms of rewards have the
names that they have in Gymnasium 1.3 (Towers et al., arXiv 2407.17032). As
there, after a step all but `q` and `qd` are of the physics' last evaluation of
forces, a fraction of a time step before. `env` is a `GymRobot`.
"""

import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from qdrl_haiku.types import Array, Key, Record

if TYPE_CHECKING:
  from brax.mjx.base import State as Physics

  from qdrl_haiku.environments.suites.gym_environment import GymRobot

Parts = dict[str, Array]
Range = tuple[float, float]
_ANY = (-np.inf, np.inf)
# Of places that are drawn at once; that all are refused is as good as never.
_NUM_PLACES = 64


def _within(x: Array, bounds: Range) -> Array:
  """Returns whether numbers are between two others."""
  return (bounds[0] < x) & (x < bounds[1])


def _is_healthy(env: "GymRobot", state: "Physics") -> Array:
  """Returns whether a robot is as high, as upright and as slow as it should."""
  a = env.arguments
  height = state.q[1 if "healthy_angle_range" in a else 2]
  rest = jnp.concatenate([state.q[2:], state.qd])
  return (
    _within(height, a.get("healthy_z_range", _ANY))
    & _within(state.q[2], a.get("healthy_angle_range", _ANY))
    & jnp.all(_within(rest, a.get("healthy_state_range", _ANY))))


def _see(env: "GymRobot", state: "Physics") -> Parts:
  """Observes all but where on the floor a robot is."""
  a, task = env.arguments, env.task
  is_hidden = a["exclude_current_positions_from_observation"]
  bodies = {
    "cinert": state._impl.cinert[1:], "cvel": state.cvel[1:],
    "qfrc_actuator": state.qfrc_actuator[6:],
    "cfrc_ext": _forces(env, state)[1:]}
  return {
    "qpos": state.q[task.num_places * is_hidden :],
    "qvel": jnp.clip(state.qd, -task.fastest, task.fastest),
    **{
      name: x for name, x in bodies.items()
      if a.get(f"include_{name}_in_observation")}}


class Task(NamedTuple):
  """Says what one of Gymnasium's robots is to do; states are MJX's."""

  file: str  # Its model, among Gymnasium's assets.
  frame_skip: int  # Time steps of an action.
  arguments: Record  # Of Gymnasium's constructor, with defaults.
  # (env, state before, state after, control [A]) -> terms [] of the reward.
  reward: Callable[["GymRobot", "Physics", "Physics", Array], Parts]
  # (env, state) -> what is seen, in order, and whether the episode goes on.
  observe: Callable[["GymRobot", "Physics"], Parts] = _see
  is_healthy: Callable[["GymRobot", "Physics"], Array] = _is_healthy
  num_places: int = 0  # Coordinates that say where on the floor it is.
  fastest: float = np.inf  # Beyond it, velocities are clipped when seen.
  normal: bool = False  # Whether velocities begin normal, not uniform.
  # Of initial positions and velocities, where it's no argument.
  noise: tuple[float, float] | None = None
  # Where an object begins, from which coordinate on: low [2], high [2], and
  # how far from the origin.
  place: tuple[int, Range, Range, Range] | None = None
  robot: str | None = None  # In `UNI_ROBOTS`, if its feet describe it.
  episode_length: int = 1000  # Gymnasium's limit of steps.

  def is_over(self, env: "GymRobot", state: "Physics") -> Array:
    """Returns whether an episode terminates, bool []."""
    ends = jnp.asarray(env.arguments.get("terminate_when_unhealthy", True))
    return ends & ~self.is_healthy(env, state)

  def begin(
    self, env: "GymRobot", key: Key, q: Array, num_dofs: int
  ) -> tuple[Array, Array]:
    """Draws initial positions [Q] and velocities [V] near the model's own.

    Args:
      env: whose arguments have the noise's scale.
      key: consumed.
      q: [Q], the model's positions.
      num_dofs: V.
    """
    q_key, qd_key, place_key = jax.random.split(key, 3)
    uniform = functools.partial(jax.random.uniform, minval=-1.0)
    draw = jax.random.normal if self.normal else uniform
    scales = self.noise or (env.arguments["reset_noise_scale"],) * 2
    q = q + scales[0] * uniform(q_key, q.shape)
    qd = scales[1] * draw(qd_key, (num_dofs,))
    if self.place is None:
      return q, qd
    start, low, high, distance = self.place
    places = jax.random.uniform(
      place_key, (_NUM_PLACES, 2), minval=jnp.array(low),
      maxval=jnp.array(high))
    first = jnp.argmax(_within(_norm(places), distance))
    q = q.at[start : start + 2 or None].set(places[first])
    return q, qd.at[start:].set(0.0)


def _norm(x: Array) -> Array:
  """Returns the lengths of vectors [..., N]."""
  return jnp.linalg.norm(x, axis=-1)


def _forces(env: "GymRobot", state: "Physics") -> Array:
  """Returns what contacts do to bodies, [N, 6]; the ant feels a little."""
  bounds = env.arguments.get("contact_force_range", _ANY)
  return jnp.clip(state._impl.cfrc_ext, *bounds)


def _move(
  env: "GymRobot", before: "Physics", after: "Physics", control: Array, *,
  x: Callable[["GymRobot", "Physics"], Array] = lambda _, state: state.q[0],
) -> Parts:
  """Pays for speed along x and for health, less control and contacts."""
  a = env.arguments
  speed = (x(env, after) - x(env, before)) / env.dt
  terms = {
    "reward_forward": a["forward_reward_weight"] * speed,
    "reward_ctrl": -a["ctrl_cost_weight"] * jnp.sum(control**2)}
  if "healthy_reward" in a:
    healthy = env.task.is_healthy(env, after)
    terms["reward_survive"] = a["healthy_reward"] * healthy
  if "contact_cost_weight" in a:
    cost = a["contact_cost_weight"] * jnp.sum(_forces(env, after) ** 2)
    bounds = a.get("contact_cost_range", _ANY)
    terms["reward_contact"] = -jnp.clip(cost, *bounds)
  return terms


def _x_of_mass(env: "GymRobot", state: "Physics") -> Array:
  """Returns where the centre of all masses is."""
  mass = env.sys.body_mass
  return jnp.sum(mass * state.xipos[:, 0]) / jnp.sum(mass)


def _stand_up(
  env: "GymRobot", _: "Physics", after: "Physics", control: Array
) -> Parts:
  """Pays for height, less control and contacts."""
  a = env.arguments
  cost = a["impact_cost_weight"] * jnp.sum(after._impl.cfrc_ext**2)
  return {
    "reward_linup": after.q[2] / env.sys.mj_model.opt.timestep,
    "reward_quadctrl": -a["ctrl_cost_weight"] * jnp.sum(control**2),
    "reward_impact": -jnp.clip(cost, *a["impact_cost_range"]),
    "reward_survive": jnp.ones(())}


def _reach(
  env: "GymRobot", _: "Physics", after: "Physics", control: Array
) -> Parts:
  """Pays for a fingertip near the target, less control."""
  a, (tip, target) = env.arguments, after.xpos[-2:]
  return {
    "reward_dist": -a["reward_dist_weight"] * _norm(tip - target),
    "reward_ctrl": -a["reward_control_weight"] * jnp.sum(control**2)}


def _push(
  env: "GymRobot", _: "Physics", after: "Physics", control: Array
) -> Parts:
  """Pays for an object near its goal and a hand near the object."""
  a, (hand, thing, goal) = env.arguments, after.xpos[-3:]
  return {
    "reward_dist": -a["reward_dist_weight"] * _norm(thing - goal),
    "reward_ctrl": -a["reward_control_weight"] * jnp.sum(control**2),
    "reward_near": -a["reward_near_weight"] * _norm(thing - hand)}


def _balance(
  env: "GymRobot", _: "Physics", after: "Physics", control: Array
) -> Parts:
  """Pays for two poles that stand still upon each other."""
  (x, _, y), (_, v1, v2) = after.site_xpos[0], after.qd
  healthy = env.task.is_healthy(env, after)
  return {
    "reward_survive": env.arguments["healthy_reward"] * healthy,
    "distance_penalty": -(0.01 * x**2 + (y - 2) ** 2),
    "velocity_penalty": -(1e-3 * v1**2 + 5e-3 * v2**2)}


_RUN = {
  "forward_reward_weight": 1.0, "ctrl_cost_weight": 0.1,
  "reset_noise_scale": 0.1, "exclude_current_positions_from_observation": True}
_WALK = _RUN | {
  "ctrl_cost_weight": 1e-3, "healthy_reward": 1.0,
  "terminate_when_unhealthy": True, "healthy_z_range": (0.8, 2.0),
  "healthy_angle_range": (-1.0, 1.0), "reset_noise_scale": 5e-3}
_HUMANOID = {
  "ctrl_cost_weight": 0.1, "reset_noise_scale": 1e-2,
  "exclude_current_positions_from_observation": True,
  **{
    f"include_{x}_in_observation": True
    for x in ("cinert", "cvel", "qfrc_actuator", "cfrc_ext")}}
TASKS: Mapping[str, Task] = {
  "Ant-v5": Task(
    "ant.xml", 5,
    _RUN | {
      "ctrl_cost_weight": 0.5, "contact_cost_weight": 5e-4,
      "healthy_reward": 1.0, "main_body": 1, "terminate_when_unhealthy": True,
      "healthy_z_range": (0.2, 1.0), "contact_force_range": (-1.0, 1.0),
      "include_cfrc_ext_in_observation": True},
    functools.partial(_move, x=lambda env, state: state.xpos[
      env.sys.mj_model.body(env.arguments["main_body"]).id, 0]),
    num_places=2, normal=True, robot="ant"),
  "HalfCheetah-v5": Task(
    "half_cheetah.xml", 5, _RUN, _move, num_places=1, normal=True,
    robot="halfcheetah"),
  "Hopper-v5": Task(
    "hopper.xml", 4,
    _WALK | {
      "healthy_state_range": (-100.0, 100.0), "healthy_z_range": (0.7, np.inf),
      "healthy_angle_range": (-0.2, 0.2)},
    _move, num_places=1, fastest=10.0, robot="hopper"),
  "Humanoid-v5": Task(
    "humanoid.xml", 5,
    _HUMANOID | {
      "forward_reward_weight": 1.25, "contact_cost_weight": 5e-7,
      "contact_cost_range": (-np.inf, 10.0), "healthy_reward": 5.0,
      "terminate_when_unhealthy": True, "healthy_z_range": (1.0, 2.0)},
    functools.partial(_move, x=_x_of_mass), num_places=2, robot="humanoid"),
  "HumanoidStandup-v5": Task(
    "humanoidstandup.xml", 5,
    _HUMANOID | {
      "impact_cost_weight": 0.5e-6, "impact_cost_range": (-np.inf, 10.0)},
    _stand_up, num_places=2),
  "InvertedDoublePendulum-v5": Task(
    "inverted_double_pendulum.xml", 5,
    {"healthy_reward": 10.0, "reset_noise_scale": 0.1}, _balance,
    lambda env, state: {
      "cart": state.q[:1], "sin": jnp.sin(state.q[1:]),
      "cos": jnp.cos(state.q[1:]), "qvel": jnp.clip(state.qd, -10, 10),
      "qfrc_constraint": jnp.clip(state.qfrc_constraint[:1], -10, 10)},
    lambda env, state: state.site_xpos[0, 2] > 1, normal=True),
  "InvertedPendulum-v5": Task(
    "inverted_pendulum.xml", 2, {"reset_noise_scale": 0.01},
    lambda env, _, after, control: {
      "reward_survive": 1.0 * env.task.is_healthy(env, after)},
    lambda env, state: {"qpos": state.q, "qvel": state.qd},
    lambda env, state: jnp.abs(state.q[1]) <= 0.2),
  "Pusher-v5": Task(
    "pusher_v5.xml", 5,
    {
      "reward_near_weight": 0.5, "reward_dist_weight": 1.0,
      "reward_control_weight": 0.1},
    _push,
    lambda env, state: {
      "qpos": state.q[:7], "qvel": state.qd[:7], "places": state.xpos[-3:]},
    noise=(0.0, 0.005), place=(-4, (-0.3, -0.2), (0.0, 0.2), (0.17, np.inf)),
    episode_length=100),
  "Reacher-v5": Task(
    "reacher.xml", 2, {"reward_dist_weight": 1.0, "reward_control_weight": 1.0},
    _reach,
    lambda env, state: {
      "cos": jnp.cos(state.q[:2]), "sin": jnp.sin(state.q[:2]),
      "target": state.q[2:], "qvel": state.qd[:2],
      "offset": (state.xpos[-2] - state.xpos[-1])[:2]},
    noise=(0.1, 0.005), place=(-2, (-0.2, -0.2), (0.2, 0.2), (-1.0, 0.2)),
    episode_length=50),
  "Swimmer-v5": Task(
    "swimmer.xml", 4, _RUN | {"ctrl_cost_weight": 1e-4}, _move, num_places=2),
  "Walker2d-v5": Task(
    "walker2d_v5.xml", 4, _WALK, _move, num_places=1, fastest=10.0,
    robot="walker2d")}
"""The tasks by Gymnasium's ids."""
