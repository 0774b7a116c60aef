"""Tests of tasks on brax's robots."""

import copy
import functools
import types

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest

from qdrl_haiku import environments
from qdrl_haiku.environments.suites import brax_loading, brax_tasks

# Optimising what then runs for a moment takes longer than it saves.
_jit = functools.partial(
  jax.jit, compiler_options={"xla_backend_optimization_level": 0})


def _robot(name, backend="spring"):
  """One of brax's robots, not wrapped."""
  with brax_loading.quiet_brax_loading():
    return brax_loading.load_brax_class(name)(backend=backend)


# Where each ant starts, and its velocity, with which all but the last would be
# 3 m or more behind a wall in the end, were it not there.
_WAYS = {
  "ahead": [(0, 0), (2.5, 0)], "sideways": [(9.5, 0), (0, -2.5)],
  "from behind": [(16, 0), (-2.5, 0)], "beside": [(0, 5.5), (2.5, 0)]}


@pytest.fixture(scope="module")
def paths():
  """Pushes ants about; returns their states by way, [T, ...]."""
  env = environments.create("ant_trap").unwrapped

  @_jit
  @jax.vmap
  def run(start, velocity):
    state = env.reset(jax.random.key(0))
    start = env.sys.init_q.at[:2].set(start)
    state = state.replace(
      pipeline_state=env.pipeline_init(start, jnp.zeros(env.sys.qd_size())))

    def step(state, _):
      """Gives all parts of an ant the velocity."""
      physics = state.pipeline_state
      still = jnp.zeros_like(physics.xd_i.vel)
      motion = physics.xd_i.replace(
        vel=still.at[:, :2].set(velocity), ang=still)
      state = state.replace(pipeline_state=physics.replace(xd_i=motion))
      return (env.step(state, jnp.zeros(8)),) * 2

    return jax.lax.scan(step, state, length=150)[1]

  with brax_loading.quiet_brax_loading():
    states = run(*jnp.array([*_WAYS.values()], jnp.float32).swapaxes(0, 1))
  return {
    name: jax.tree.map(lambda x, i=i: np.asarray(x[i]), states)
    for i, name in enumerate(_WAYS)}


@pytest.mark.slow
@pytest.mark.parametrize("way, axis, side", [
  ("ahead", 0, (10.5, 11.5)), ("sideways", 1, (-2.5, -1.5)),
  ("from behind", 0, (12.5, 13.5)), ("beside", 0, (15, 20))])
def test_an_ant_is_stopped_by_walls_and_knows_where(paths, way, axis, side):
  state = paths[way]
  assert not state.done.any()
  position = state.info["state_descriptor"].astype(np.float64)
  assert side[0] < position[-1, axis] < side[1]
  # In units of the descriptor's bounds.
  np.testing.assert_allclose(
    state.obs[:, :2], (position - [15, 0]) / [15, 8], atol=1e-6)
  assert state.obs.shape[-1] == 29
  if way == "ahead":  # For which it's rewarded.
    velocity = np.diff(position[:, 0]) / 0.05
    np.testing.assert_allclose(state.reward[1:], 1 + velocity, atol=1e-3)
    assert velocity[:60].mean() > 1.5


@pytest.mark.slow
def test_the_settings_of_brax_for_the_backend_are_kept():
  env = _robot("ant", "positional")
  plain, geoms = env.sys, env.sys.mj_model.ngeom
  with brax_loading.quiet_brax_loading():
    trapped = brax_tasks.trap_task(env).sys
  assert env.sys is plain
  assert trapped.mj_model.ngeom == geoms + len(brax_tasks.WALLS)
  for name in ("opt", "actuator", "link", "init_q"):
    jax.tree.map(
      np.testing.assert_array_equal, getattr(plain, name),
      getattr(trapped, name))


def test_an_ant_begins_where_it_is_told_to():
  env = environments.create(
    "ant_trap", backend="spring", initial_height=0.75, reset_noise_scale=0.0
  ).unwrapped
  with brax_loading.quiet_brax_loading():
    state = _jit(env.reset)(jax.random.key(0))
  plain = _robot("ant").sys.init_q
  assert plain[2] == np.float32(0.55)
  np.testing.assert_allclose(
    state.pipeline_state.q, plain.at[2].set(0.75), atol=1e-6)


@pytest.mark.slow
def test_an_omnidirectional_ant_tells_where_it_is_and_earns_no_speed():
  env = environments.create("ant_omni").unwrapped

  @_jit
  def run(key):
    actions = jax.random.uniform(key, (20, 8), minval=-1, maxval=1)

    def step(state, action):
      state = env.step(state, action)
      return state, (state, action)

    return jax.lax.scan(step, env.reset(key), actions)[1]

  with brax_loading.quiet_brax_loading():
    states, actions = run(jax.random.key(0))
  assert abs(states.metrics["x_velocity"]).max() > 0.5
  expected = 1 - 0.5 * (np.asarray(actions, np.float64) ** 2).sum(-1)
  np.testing.assert_allclose(states.reward, expected, atol=1e-5)
  position = states.info["state_descriptor"]
  np.testing.assert_array_equal(position[:, 0], states.metrics["x_position"])
  np.testing.assert_array_equal(position[:, 1], states.metrics["y_position"])
  assert abs(position).max() > 0.05


# Spheres and capsules, fixed and jointed; the cheetah and the hopper have two
# capsules and one.
@pytest.mark.slow
@pytest.mark.parametrize("name", ["ant", "humanoid", "walker2d"])
def test_each_foot_is_told_apart_and_is_where_its_name_says(name):
  from brax import kinematics

  brax_env = _robot(name)
  sys, feet = brax_env.sys, brax_tasks.UNI_ROBOTS[name][0]
  assert brax_tasks.uni_task(brax_env, name).descriptor.names == tuple(feet)
  model = copy.copy(sys.mj_model)
  model.geom_margin[:] = 9.0
  data = mujoco.MjData(model)
  geoms = [model.geom(geom).id for geom in feet.values()]

  def heights(q):
    """How high each foot is above the ground, as MuJoCo has it."""
    data.qpos = q
    mujoco.mj_forward(model, data)
    floor = model.geom("floor").id
    return [
      min(x.dist for x in data.contact if {x.geom1, x.geom2} == {floor, geom})
      for geom in geoms]

  noise = 0.3 * np.random.default_rng(0).normal(size=(50, sys.q_size()))
  poses = np.asarray(sys.init_q) + noise
  # Each is moved to where its lowest foot is 0.5 or 1.5 mm above the ground.
  up = 1
  if sys.link_types[0] == "f":
    up = 2
    poses[:, 3:7] /= np.linalg.norm(poses[:, 3:7], axis=1, keepdims=True)
  offset = np.where(np.arange(50) % 2, 1.5e-3, 0.5e-3)
  poses[:, up] += offset - np.min([heights(q) for q in poses], axis=1)
  expected = np.array([heights(q) for q in poses])
  touching = brax_tasks.ground_contact(sys, list(feet.values()))

  @_jit
  @jax.vmap
  def touches(q):
    x, _ = kinematics.forward(sys, q, jnp.zeros(sys.qd_size()))
    state = types.SimpleNamespace(pipeline_state=types.SimpleNamespace(x=x))
    return touching(state)

  with brax_loading.quiet_brax_loading():
    found = touches(jnp.asarray(poses, jnp.float32))
  np.testing.assert_array_equal(found, expected < 1e-3)
  np.testing.assert_array_equal(found.any(1), offset < 1e-3)
  assert np.unique(found, axis=1).shape[1] == len(feet)
  heights(sys.init_q)
  for foot, geom in zip(feet, geoms, strict=True):
    front, left, _ = data.geom_xpos[geom] - data.xpos[1]
    for word, side in (
      ("front", front), ("back", -front), ("left", left), ("right", -left)
    ):
      # The walker is flat: both of its feet are in the middle.
      assert word not in foot or name == "walker2d" or side > 0.02, foot
