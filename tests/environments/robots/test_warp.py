"""Tests of robots by MuJoCo Warp, beside C MuJoCo."""

import pathlib
import sys

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest

from qdrl_haiku import environments

_TRIPOD = str(pathlib.Path(__file__).with_name("tripod.xml"))


def _bare(model):
  """Observes where the robot is and how it moves, and its feet's heights."""
  del model
  return environments.Task(
    lambda before, after, action: jnp.sum(action),
    observe=lambda state: jnp.concatenate(
      [state.q, state.qd, state.position("foot_0"), state.velocity("torso")]),
    initial_noise=0.0, step_seconds=0.01)


def _expected(model, first, controls):
  """Returns q and qd [T, ...] of C MuJoCo, two time steps per action."""
  data = mujoco.MjData(model)
  data.qpos[:], data.qvel[:] = np.split(np.asarray(first), [model.nq])
  seen = []
  for control in np.asarray(controls):
    data.ctrl[:] = control
    mujoco.mj_step(model, data, 2)
    seen.append([*data.qpos, *data.qvel])
  return np.array(seen)


@pytest.mark.slow
def test_each_instance_steps_as_mujoco_does_with_its_own_physics():
  pytest.importorskip("warp")
  env = environments.create(
    _TRIPOD, backend="warp", task=_bare, episode_length=100,
    randomize=["mass:uniform:1:3", "gravity:uniform:0.5:1"])
  model = env.unwrapped.sys.mj_model
  size = model.nq + model.nv
  controls = np.random.default_rng(0).uniform(-1, 1, (30, 3, model.nu))
  state = env.reset(jax.random.split(jax.random.key(1), 3))
  drawn = state.pipeline_state.info["randomization"]["values"]
  first, step, found = np.asarray(state.obs), jax.jit(env.step), []
  for control in controls:
    state = step(state, jnp.asarray(control, jnp.float32))
    found.append(np.asarray(state.obs))
  found = np.array(found)
  for i in range(3):
    changed = env.unwrapped.sys.mj_model.__copy__()
    changed.body_mass *= float(drawn["mass"][i])
    changed.body_inertia *= float(drawn["mass"][i])
    changed.opt.gravity *= float(drawn["gravity"][i])
    mujoco.mj_setConst(changed, mujoco.MjData(changed))
    wanted = _expected(changed, first[i, :size], controls[:, i])
    # It lands on its feet within these steps.
    np.testing.assert_allclose(found[:, i, :size], wanted, atol=5e-5)
    data = mujoco.MjData(changed)
    data.qpos[:], data.qvel[:] = np.split(wanted[-1], [model.nq])
    mujoco.mj_forward(changed, data)
    foot = data.geom("foot_0").xpos
    np.testing.assert_allclose(found[-1, i, size : size + 3], foot, atol=5e-5)
    np.testing.assert_allclose(
      found[-1, i, size + 3 :], data.qvel[:3], atol=5e-5)


def test_without_warp_a_line_says_what_to_install(monkeypatch):
  monkeypatch.setitem(sys.modules, "warp", None)
  with pytest.raises(ValueError, match=r"needs MuJoCo Warp; .*\[warp\]'"):
    environments.create(_TRIPOD, backend="warp")
