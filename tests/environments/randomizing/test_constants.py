"""Tests of what follows from inertia, beside MuJoCo's own `mj_setConst`."""

import copy

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest

from qdrl_haiku.environments import randomizing, robots
from qdrl_haiku.environments.randomizing import constants

# Joints of each kind, and what MuJoCo has rules of its own for: bodies that
# only slide, bodies that can't move, armature of joints and tendons, muscles.
_ALL = """<mujoco><worldbody>
<body pos="0 0 1"><joint name="j" axis="0 1 0" armature=".1"/>
  <geom type="capsule" size=".05" fromto="0 0 0 .4 0 0"/>
  <body pos=".4 0 0"><joint type="ball"/><geom size=".1"/></body></body>
<body pos="2 0 1"><joint type="slide" axis="1 0 0" armature=".3"/>
  <geom size=".1"/></body>
<body pos="3 0 1"><freejoint/><geom type="box" size=".1 .2 .3" pos=".1 0 0"/>
  <body pos="1 0 0"><joint name="s" type="slide" axis="1 1 0"/>
    <geom size=".2"/></body></body>
<body mocap="true"><geom size=".1"/></body>
</worldbody><tendon><fixed armature=".05"><joint joint="j" coef="1"/>
  <joint joint="s" coef="2"/></fixed></tendon>
<actuator><muscle joint="j" lengthrange="0 1"/><motor joint="s" gear="3"/>
</actuator></mujoco>"""
# It rests on its limit of 10 degrees.
_BAR = """<mujoco><option timestep="0.004"/><worldbody><body pos="0 0 1">
<joint name="hinge" axis="0 1 0" range="-10 10" solreflimit=".05 1"/>
<geom type="capsule" size=".05" fromto="0 0 0 .4 0 0"/></body></worldbody>
<actuator><motor joint="hinge"/></actuator></mujoco>"""


def test_what_follows_is_what_mujoco_has():
  model = mujoco.MjModel.from_xml_string(_ALL)
  factors = np.stack([
    np.ones(model.nbody), np.full(model.nbody, 3), np.full(model.nbody, 10),
    np.where(np.arange(model.nbody) == 2, 7, 1),
    np.exp(np.random.default_rng(0).uniform(-2, 2, model.nbody))])
  moved = np.random.default_rng(1).uniform(-0.1, 0.1, model.body_ipos.shape)
  moved[model.body_simple != 0] = 0  # Which MuJoCo refuses.
  added = np.linspace(0.0, 0.3, model.nv)
  derive = constants.derive_constants(model)
  of_masses, of_all = jax.jit(jax.vmap(
    lambda x: (derive(x), derive(x, jnp.float32(moved), jnp.float32(added)))))(
      jnp.array(factors, jnp.float32))
  assert set(of_masses) == {
    "actuator_acc0", "body_invweight0", "body_subtreemass", "dof_invweight0",
    "tendon_invweight0"}
  for found, share in ((of_masses, 0), (of_all, 1)):
    for i, factor in enumerate(factors):
      other = copy.copy(model)
      other.body_mass *= factor
      other.body_inertia *= factor[:, None]
      other.body_ipos += share * moved
      other.dof_armature += share * added
      mujoco.mj_setConst(other, mujoco.MjData(other))
      for name, values in found.items():
        np.testing.assert_allclose(
          values[i], getattr(other, name), rtol=1e-4, atol=1e-7, err_msg=name)


@pytest.mark.parametrize("backend", ["generalized", "mjx"])
def test_a_joint_rests_on_its_limit_whatever_it_weighs(tmp_path, backend):
  path = tmp_path / "bar.xml"
  path.write_text(_BAR)
  robot = robots.from_mjcf(str(path), "stand", backend=backend)
  env = randomizing.randomized(robot, ["mass:choice:1:3:10"])

  @jax.jit
  @jax.vmap
  def rest(key):
    state = jax.lax.fori_loop(
      0, 100, lambda _, state: env.step(state, jnp.zeros(1)), env.reset(key))
    drawn = state.info["randomization"]["values"]["mass"]
    return drawn, jnp.degrees(state.pipeline_state.q[0])

  drawn, angles = rest(jax.random.split(jax.random.key(0), 16))
  for factor in (1, 3, 10):
    model = mujoco.MjModel.from_xml_path(str(path))
    model.body_mass *= factor
    model.body_inertia *= factor
    data = mujoco.MjData(model)
    mujoco.mj_setConst(model, data)
    mujoco.mj_step(model, data, 2000)
    np.testing.assert_allclose(
      angles[drawn == factor], np.degrees(data.qpos[0]), atol=0.01)
  assert set(drawn.tolist()) == {1, 3, 10}
