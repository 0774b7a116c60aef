"""Tests of what agents don't see, beside physics and whole observations."""

import pathlib
import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qdrl_haiku import environments, specs
from qdrl_haiku.environments import hiding, registry
from qdrl_haiku.environments.suites import gymnasium_environment

_TRIPOD = str(pathlib.Path(__file__).parent / "robots" / "tripod.xml")
_GYMNAX = (
  "CartPole-v1", "Pendulum-v1", "Acrobot-v1", "MountainCar-v0",
  "MountainCarContinuous-v0", "Reacher-misc", "Swimmer-misc")


def _changed(x, y):
  return np.flatnonzero(np.abs(np.asarray(x) - np.asarray(y)) > 1e-6).tolist()


def _velocities(name, size):
  return [range(size)[i] for i in hiding.observation_names(name)["velocity"]]


@pytest.mark.parametrize("name", [x for x in registry.BRAX if x != "fast"])
def test_of_braxs_robots_velocities_are_what_changes_with_speed(name):
  one = registry.BRAX[name].load()()
  from brax import base, kinematics

  def observe(speed):
    q = jnp.asarray(one.sys.init_q) + 0.1
    qd = speed * jax.random.uniform(
      jax.random.key(0), (one.sys.qd_size(),), minval=0.5)
    state = base.State(q, qd, *kinematics.forward(one.sys, q, qd), None)
    action = jnp.zeros(one.action_size)
    rest = (action,) if name.startswith("humanoid") else ()
    return one._get_obs(state, *rest)

  slow, fast = map(jax.jit(observe), (1.0, 2.0))
  assert _velocities(name, slow.size) == _changed(slow, fast)
  for task in ("uni", "omni", "trap"):
    assert _velocities(f"{name}_{task}", slow.size) == _changed(slow, fast)


@pytest.mark.parametrize("name", _GYMNAX)
def test_of_gymnax_velocities_are_what_changes_with_speed(name):
  gymnax = pytest.importorskip("gymnax")
  env, params = gymnax.make(name)
  _, state = env.reset_env(jax.random.key(0), params)
  faster = state.replace(**{
    x: value + 0.1
    for x, value in vars(state).items() if "dot" in x or "vel" in x})
  seen = [env.get_obs(x, params) for x in (state, faster)]
  assert _velocities(f"gymnax:{name}", seen[0].size) == _changed(*seen)


@pytest.mark.parametrize("name", [
  "Ant", "HalfCheetah", "Humanoid", "InvertedDoublePendulum",
  "InvertedPendulum", "Pusher", "Reacher"])
def test_of_gymnasiums_robots_velocities_are_what_changes_with_speed(
  name, monkeypatch
):
  gymnasium = pytest.importorskip("gymnasium")
  # Which only shows them.
  monkeypatch.setitem(sys.modules, "imageio", types.ModuleType("imageio"))
  env = gymnasium.make(f"{name}-v5").unwrapped
  seen = []
  for speed in (1, 2):
    env.reset(seed=0)
    env.set_state(env.data.qpos, np.full(env.model.nv, float(speed)))
    seen.append(env._get_obs().copy())
  places = gymnasium_environment._observation_names(f"{name}-v5", env)
  assert list(places["velocity"]) == _changed(*seen)


def test_what_is_left_is_as_it_was():
  pytest.importorskip("gymnax")
  given = {
    "env_name": "gymnax:CartPole-v1", "episode_length": 6,
    "randomize": ("observation_noise:fixed:0.1",)}
  whole, env = (
    environments.EnvironmentConfig(hide=x, **given).make()
    for x in ((), ("velocity",)))
  assert env.observation_spec == specs.Array((2,))
  keys = jax.random.split(jax.random.key(0), 3)
  states = [x.reset(keys) for x in (whole, env)]
  for t in range(8):
    action = jnp.array([t % 2, 0, 1])
    for x in (
      lambda state: state.obs, lambda state: state.info["next_observation"]):
      np.testing.assert_array_equal(x(states[0])[:, ::2], x(states[1]))
    np.testing.assert_array_equal(states[0].done, states[1].done)
    states = [
      x.step(state, action)
      for x, state in zip((whole, env), states, strict=True)]


def test_of_gymnasium_what_is_left_is_as_it_was():
  pytest.importorskip("gymnasium")
  whole, env, other = (
    environments.create("gymnasium:CartPole-v1", hide=x)
    for x in ((), ("velocity", "0"), ("0", "1", "3")))
  states = [x.reset(jax.random.key(0)[None]) for x in (whole, env)]
  for _ in range(3):
    np.testing.assert_array_equal(states[0].obs[:, 2:3], states[1].obs)
    states = [
      x.step(state, jnp.array([1]))
      for x, state in zip((whole, env), states, strict=True)]
  other.restore(states[1])
  after = [x.step(states[1], jnp.array([0])).obs for x in (env, other)]
  np.testing.assert_array_equal(*after)


def test_of_a_robot_of_a_file_velocities_are_what_it_says():
  one = environments.from_mjcf(_TRIPOD, backend="spring")
  state = jax.jit(one.reset)(jax.random.key(0))
  speeds = [state.obs[i] for i in one.observation_names["velocity"]]
  np.testing.assert_array_equal(speeds, state.pipeline_state.qd)
  env = hiding.Hidden(one, ("velocity",), "")
  assert env.observation_spec.shape[0] == state.obs.size - len(speeds)


_DICT = {"a": specs.Array((2,)), "b": specs.Array((3, 3, 1), "uint8")}


def test_of_a_dict_entries_are_hidden():
  spec, see = hiding.what_is_seen(_DICT, ("a",), {})
  assert spec == see(_DICT) == {"b": _DICT["b"]}


@pytest.mark.parametrize(("spec", "hide", "message"), [
  (specs.Array((2,)), "velocity", "hide='velocity' is .*; give .*, ind.* 2"),
  (specs.Array((2,)), "2", "hide='2' is no part of observations"),
  (specs.Array((2,)), "0,1", "hide=0,1 leaves nothing"),
  (_DICT, "0", "hide='0' is no part .* give one of a, b"),
  (_DICT["b"], "0", "hide='0' is no part")])
def test_nonsense_is_refused_in_one_line(spec, hide, message):
  with pytest.raises(ValueError, match=message) as error:
    hiding.what_is_seen(spec, hide.split(","), {"speed": (1,)})
  assert "\n" not in str(error.value)
