"""Tests of pushes, of poses at the start, and of Playground's robots."""

import types

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest
from mujoco import mjx

from qdrl_haiku import environments
from qdrl_haiku.environments import randomizing
from qdrl_haiku.environments.randomizing import motions

_CART = """<mujoco><option timestep="0.01"><flag contact="disable"/></option>
<worldbody><body name="cart" pos="0 0 1">
  {root}<geom size=".1" mass="1"/>
  <body name="pole"><joint name="hinge" axis="0 1 0" range="-90 6"
    armature=".1"/>
    <geom type="capsule" size=".05" fromto="0 0 0 0 0 .6" mass=".3"/></body>
</body></worldbody><actuator><motor joint="hinge"/></actuator></mujoco>"""
_SLIDE = '<joint name="slide" type="slide" axis="1 0 0" stiffness="3"/>'
_FREE = "<freejoint/>"


class _Playgrounds:
  """A cart with a pole, as Playground's environments are made."""

  observation_spec, action_size, dt = None, 1, 0.02
  mjx_model = property(lambda self: self._mjx_model)
  mj_model = property(lambda self: self._mj_model)

  def __init__(self, root=_SLIDE):
    self._mj_model = mujoco.MjModel.from_xml_string(_CART.format(root=root))
    self._mjx_model = mjx.put_model(self._mj_model)
    self._init_q = jnp.array(self._mj_model.qpos0)

  def _state(self, data):
    zero = jnp.zeros(())
    return environments.State(
      data, jnp.concatenate([data.qpos, data.qvel]), zero, zero)

  def reset(self, rng):
    data = mjx.make_data(self.mjx_model).replace(qpos=self._init_q)
    return self._state(mjx.forward(self.mjx_model, data))

  def step(self, state, action):
    data = state.pipeline_state.replace(ctrl=action)
    for _ in range(2):
      data = mjx.step(self.mjx_model, data)
    return self._state(data)


def test_playgrounds_robots_are_changed_as_mujocos():
  robot = _Playgrounds()
  env = randomizing.randomized(robot, [
    "mass/p*:fixed:3", "armature:fixed:2", "stiffness/slide:fixed:0.5",
    "initial_pose/hinge:fixed:0.3", "slope_x:fixed:20"])
  assert robot._mjx_model is env.env._mjx_model
  state = jax.jit(env.reset)(jax.random.key(0))
  model = robot.mj_model
  model.body_mass[2] *= 3
  model.body_inertia[2] *= 3
  model.dof_armature *= 2
  model.jnt_stiffness[0] *= 0.5
  model.opt.gravity = 9.81 * np.array(
    [-np.sin(np.radians(20)), 0, -np.cos(np.radians(20))])
  data = mujoco.MjData(model)
  mujoco.mj_setConst(model, data)
  mujoco.mj_resetData(model, data)
  assert 0 < abs(state.obs[1]) <= 0.3
  data.qpos[1] = state.obs[1]
  step = jax.jit(env.step)
  for _ in range(20):
    state = step(state, jnp.array([0.5]))
    data.ctrl = 0.5
    mujoco.mj_step(model, data, 2)
  np.testing.assert_allclose(
    state.obs, np.concatenate([data.qpos, data.qvel]), atol=1e-5)
  assert np.abs(data.qpos).min() > 0.01


def test_poses_at_the_start_are_within_the_joints_limits():
  made = motions.Motions(_Playgrounds(_FREE), {"initial_pose": None})
  keys = jax.random.split(jax.random.key(0), 500)
  drawn = jax.vmap(lambda key: made.posed(
    _Playgrounds(_FREE), {"initial_pose": jnp.array(0.4)}, key)._init_q)(keys)
  np.testing.assert_array_equal(drawn[:, :7], [[0, 0, 1, 1, 0, 0, 0]] * 500)
  assert drawn[:, 7].min() == pytest.approx(-0.4, abs=0.02)
  assert drawn[:, 7].max() == pytest.approx(np.radians(6))


@pytest.mark.parametrize("root", [_FREE, _SLIDE])
def test_pushes_come_at_random_times_from_all_sides(root):
  robot = _Playgrounds(root)
  made = motions.Motions(robot, {"push": None, "push_interval": None})
  state = robot.reset(jax.random.key(0))
  values = {"push": jnp.array(0.5), "push_interval": jnp.array(0.1)}
  moved = np.asarray(jax.vmap(
    lambda key: made.pushed(state, values, key).pipeline_state.qvel)(
    jax.random.split(jax.random.key(1), 4000)))
  dofs = 2 if root == _FREE else 1
  np.testing.assert_array_equal(moved[:, dofs:], 0)
  speed = np.linalg.norm(moved, axis=1)
  np.testing.assert_allclose(speed[speed > 0], 0.5, rtol=1e-5)
  # Every fifth step, of 0.02 s.
  assert np.mean(speed > 0) == pytest.approx(0.2, abs=0.03)
  assert np.abs(moved[speed > 0].mean(axis=0)).max() < 0.06


def test_brax_own_physics_is_pushed_as_a_whole():
  env = environments.create("ant", randomize=["push:fixed:1"]).unwrapped
  made = env._motions
  state = jax.jit(env.env.reset)(jax.random.key(0))
  values = {"push": jnp.array(1.0), "push_interval": jnp.array(1e-3)}
  after = made.pushed(state, values, jax.random.key(0)).pipeline_state
  moved = after.xd_i.vel - state.pipeline_state.xd_i.vel
  np.testing.assert_allclose(moved, moved[:1].repeat(len(moved), 0), atol=1e-6)
  np.testing.assert_allclose(
    moved[0, :2], (after.qd - state.pipeline_state.qd)[:2], atol=1e-6)
  assert np.linalg.norm(moved[0]) == pytest.approx(1)


def test_what_begins_elsewhere_has_no_other_pose():
  robot = types.SimpleNamespace(
    _mjx_model=_Playgrounds()._mjx_model, mj_model=_Playgrounds().mj_model)
  with pytest.raises(ValueError, match="neither sys.init_q nor _init_q"):
    motions.Motions(robot, {"initial_pose": None})
