"""Tests of what is said of an object that isn't an environment."""

import jax
import jax.numpy as jnp
import pytest

from qdrl_haiku import environments
from tests.environments import liars

_LIES = [
  ("nan_obs_at_reset", r"env\.reset returned nan in obs\[0\]; return finite"),
  ("late_inf_reward", r"env\.step returned inf in reward; return finite"),
  ("half_done", r"env\.step returned done=0\.5; return 1 where a step ends"),
  ("nan_descriptor_at_step",
   r"env\.step returned nan in info\['state_descriptor'\]\[1\];"),
  ("branching", r"env\.step can't be compiled .*\(.*\); .*instead of `if`"),
  ("no_size", "env=no_size has no 'observation_size'; give an object with"),
  ("not_a_state", "returns tuple without 'obs'; return an environments.State"),
  ("other_size", r"obs has shape \(2,\) instead of \(3,\); return"),
  ("other_shape_at_step", r"different shapes: obs \[2\] -> \[3\]; return"),
  ("other_descriptor", r"descriptor'\] is described as 1 numbers, but"),
  ("resets_itself", "env resets itself .*without brax's AutoResetWrapper")]


def _create(name):
  return environments.create(f"tests.environments.liars:{name}")


@pytest.mark.parametrize(("name", "message"), _LIES)
def test_a_users_environment_that_lies_is_refused_by_the_field(name, message):
  with pytest.raises(ValueError, match=message) as error:
    _create(name)
  assert "\n" not in str(error.value)


@pytest.mark.parametrize(("env", "message"), [
  (environments.PointMaze, r"env=PointMaze is a class; give .*PointMaze\("),
  (None, "env=NoneType has no 'reset'; give an object with reset"),
  (environments.create("point_maze"), "number of .* already.*, `unwrapped`")])
def test_what_is_no_instance_is_refused_by_what_to_give(env, message):
  with pytest.raises(ValueError, match=message):
    environments.create(env)
  with pytest.raises(ValueError, match=message):
    environments.with_descriptor(env, lambda state: state.obs, None)


def test_an_environment_of_gymnasium_is_refused_by_its_name():
  env = pytest.importorskip("gymnasium").make("Pendulum-v1")
  with pytest.raises(ValueError, match="and give 'gymnasium:Mine-v0'"):
    environments.create(env)


@pytest.mark.parametrize("name", ["ending", "int_descriptor"])
def test_one_that_is_what_it_says_is_taken_whatever_follows_an_end(name):
  state = _create(name).reset(jax.random.split(jax.random.key(0), 3))
  assert state.obs.shape == (3, 2)
  if name == "int_descriptor":
    descriptor = state.info["state_descriptor"]
    assert descriptor.dtype == jnp.float32
    assert descriptor.tolist() == [[1, 1]] * 3


def test_episodes_that_are_too_long_are_refused():
  with pytest.raises(ValueError, match="=1073741824 is not a count; use"):
    environments.Environment(liars.honest(), episode_length=2**30)


def test_a_size_that_the_environment_computes_is_read():
  class Computing(liars.Walk):
    @property
    def observation_size(self):
      return int(jnp.prod(jnp.array([2, 1])))

  env = environments.Environment(Computing(), episode_length=5)
  assert env.observation_size == 2
