"""Tests of MuJoCo Playground, on a stand-in and on the real one."""

import dataclasses
import importlib.util
import struct
import sys
import types
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qdrl_haiku import environments, specs


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class _State:
  """As Playground's: what brax calls `pipeline_state` is `data`."""

  data: Any
  obs: Any
  reward: Any
  done: Any
  metrics: Any
  info: Any

  replace = dataclasses.replace


class _Hill:
  """A point that falls off at 1; each step changes the dicts that it is given,
  as Playground's do."""

  action_size = 1
  # It says shapes, where it observes a dict.
  observation_size = types.MappingProxyType(
    {"state": (2,), "privileged_state": (5,)})

  def _obs(self, x):
    return {"state": jnp.stack([x, 2 * x]), "privileged_state": jnp.zeros(5)}

  def reset(self, rng):
    x = jax.random.uniform(rng, maxval=0.1)
    zero = jnp.zeros(())
    return _State(x, self._obs(x), zero, zero, {"reward/x": zero}, {"rng": rng})

  def step(self, state, action):
    x = state.data + action[0]
    state.metrics["reward/x"] = x
    state.info["rng"] = jax.random.split(state.info["rng"])[0]
    done = (x > 1).astype(float)
    return _State(x, self._obs(x), x, done, state.metrics, state.info)


class _Swing:
  """A pendulum that hits a wall, by MuJoCo Warp as Playground uses it."""

  action_size = 1
  observation_size = 2
  _model = """<mujoco>
    <worldbody>
      <geom type="plane" size="1 1 1"/>
      <body pos="0 0 0.5"><joint name="hinge" axis="0 1 0"/>
        <geom type="capsule" size="0.05" fromto="0 0 0 0.48 0 0"/>
      </body>
    </worldbody>
    <actuator><motor joint="hinge"/></actuator>
  </mujoco>"""

  def __init__(self):
    import mujoco
    from mujoco import mjx

    self.mj_model = mujoco.MjModel.from_xml_string(self._model)
    self._mjx_model = mjx.put_model(self.mj_model, impl="warp")

  def _state(self, data):
    zero = jnp.zeros(())
    obs = jnp.concatenate([data.qpos, data.qvel])
    return _State(data, obs, data.qpos[0], zero, {}, {})

  def reset(self, rng):
    from mujoco import mjx

    data = mjx.make_data(self.mj_model, impl="warp", naconmax=40)
    data = data.replace(qpos=jax.random.uniform(rng, (1,)))
    return self._state(mjx.forward(self._mjx_model, data))

  def step(self, state, action):
    from mujoco import mjx

    return self._state(
      mjx.step(self._mjx_model, state.data.replace(ctrl=action)))


class _Config(dict):
  episode_length = 6


def _load(name, config, config_overrides):
  if name == "FarAway":
    raise OSError("no route to host")
  assert config_overrides.pop("impl") == "jax"
  if "scael" in config_overrides:
    raise KeyError("scael")
  assert not config_overrides or config_overrides == {"reward.scale": 2}
  return _Hill()


@pytest.fixture
def stand_in(monkeypatch):
  """A package `mujoco_playground` of two environments."""
  package: Any = types.ModuleType("mujoco_playground")
  package.registry = types.SimpleNamespace(
    ALL_ENVS=("Hill", "FarAway"),
    get_default_config=lambda name: _Config(impl="warp", reward={"scale": 1}),
    load=_load)
  monkeypatch.setitem(sys.modules, "mujoco_playground", package)


def test_their_states_are_taken_as_they_are(stand_in):
  env = environments.create("playground:Hill")
  assert env.observation_spec == {
    "state": specs.Array((2,)), "privileged_state": specs.Array((5,))}
  assert env.episode_length == 6
  state = env.reset(jax.random.split(jax.random.key(0), (2, 1)))
  first = state.obs["state"][..., 0]
  assert first.shape == (2, 1) and first[0, 0] != first[1, 0]
  # The first falls off at its fourth step.
  for step in range(1, 5):
    state = env.step(state, jnp.array([[[0.3]], [[0.0]]]))
    assert state.done[:, 0].tolist() == [step == 4, 0]
    x = state.info["next_observation"]["state"][..., 0]
    np.testing.assert_allclose(state.metrics["reward/x"], x, rtol=1e-6)


@pytest.mark.parametrize(("name", "kwargs", "message"), [
  ("Hil", {}, "env_name='playground:Hil' is unknown; did you mean 'Hill'"),
  ("Hill", {"backend": "spring"}, "'spring' .*'playground:Hill'; .* warp"),
  ("Hill", {"scael": 2}, "'playground:Hill' can't .*scael.*leave that"),
  ("Hill", {"assets": "nowhere"}, "='nowhere' is no folder; .*menagerie"),
  ("FarAway", {}, "FarAway' can't be loaded .no route to host.*github.com")])
def test_nonsense_is_refused_in_one_line(stand_in, name, kwargs, message):
  with pytest.raises(ValueError, match=message) as error:
    environments.create(f"playground:{name}", **kwargs)
  assert "\n" not in str(error.value)


@pytest.mark.parametrize(("package", "name"), [
  ("mujoco_playground", "playground:CartpoleBalance"),
  ("gymnax", "gymnax:Pendulum-v1"),
  ("jumanji", "jumanji:Maze-v0"),
  ("gymnasium", "gymnasium:Pendulum-v1")])
def test_a_missing_package_is_named_with_its_extra(package, name, monkeypatch):
  monkeypatch.setitem(sys.modules, package, None)
  extra = name.partition(":")[0]
  with pytest.raises(ValueError, match=rf"pip install 'qdrl_haiku\[{extra}"):
    environments.create(name)


@pytest.mark.slow
def test_instances_of_warp_are_reset_alone_and_step_as_mujoco_does(
  stand_in, monkeypatch
):
  mujoco = pytest.importorskip("mujoco")
  pytest.importorskip("warp")
  swing = _Swing()
  monkeypatch.setattr(
    sys.modules["mujoco_playground"].registry, "load", lambda *_, **__: swing)
  env = environments.create("playground:Hill", backend="warp")
  step = jax.jit(env.step)
  state = env.reset(jax.random.split(jax.random.key(0), 3))
  # One that ends sooner than the others.
  state = state.replace(info=state.info | {"steps": jnp.array([0, 3, 0])})
  found = [mujoco.MjData(swing.mj_model) for _ in range(3)]
  for data, q in zip(found, np.asarray(state.obs[:, 0]), strict=True):
    data.qpos[:] = q
  for number in range(5):
    state = step(state, jnp.zeros((3, 1)))
    assert state.done.tolist() == [0, number == 2, 0]
    for i, data in enumerate(found):
      mujoco.mj_step(swing.mj_model, data)
      after = state.info["next_observation"][i]
      np.testing.assert_allclose(
        after, [data.qpos[0], data.qvel[0]], rtol=1e-4, atol=1e-5)
      if state.done[i]:
        data.qpos[:], data.qvel[:] = np.asarray(state.obs[i])
        data.qacc_warmstart[:] = 0


@pytest.mark.slow
@pytest.mark.skipif(
  importlib.util.find_spec("mujoco_playground") is None,
  reason="MuJoCo Playground is not installed (the extra [playground])")
def test_the_real_quadruped_stands_with_assets_of_a_folder(tmp_path):
  """Its meshes are only looked at, so that any will do."""
  folder = tmp_path / "unitree_go1" / "assets"
  folder.mkdir(parents=True)
  corners = np.float32([[0, 0, 0], [0.1, 0, 0], [0, 0.1, 0], [0, 0, 0.1]])
  mesh = bytes(80) + struct.pack("<I", 4)
  for triangle in ([0, 2, 1], [0, 1, 3], [0, 3, 2], [1, 2, 3]):
    mesh += bytes(12) + corners[triangle].tobytes() + bytes(2)
  for name in ("calf", "hip", "thigh", "thigh_mirror", "trunk"):
    (folder / f"{name}.stl").write_bytes(mesh)
  config = environments.EnvironmentConfig(
    env_name="playground:Go1JoystickFlatTerrain", episode_length=5,
    playground_assets=str(tmp_path / "unitree_go1"))
  with pytest.raises(ValueError, match="lacks what .*trunk.stl"):
    config.make()
  env = dataclasses.replace(config, playground_assets=str(tmp_path)).make()
  assert env.observation_spec.keys() == {"state", "privileged_state"}
  assert env.action_size == 12
  state = env.reset(jax.random.split(jax.random.key(0), 2))
  for _ in range(5):
    state = env.step(state, jnp.zeros((2, 12)))
  assert state.reward.shape == (2,)
  assert jnp.isfinite(state.obs["privileged_state"]).all()
  np.testing.assert_array_equal(state.info["truncation"], 1)
