"""Tests of descriptors, of states and of episodes."""

import copy

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qdrl_haiku import environments
from tests import toy

# Episodes of 3, 1 and 4 steps, and what follows them.
_LENGTHS = np.array([3, 1, 4])
_STATES = np.random.default_rng(0).normal(size=(4, 3, 2)).astype(np.float32)
_MASK = np.arange(4)[:, None] < _LENGTHS
_STATES[~_MASK] = np.nan


def _describe(function):
  return jax.vmap(function, in_axes=1)(jnp.array(_STATES), jnp.array(_MASK))


def test_the_final_descriptor_is_that_of_the_last_step():
  expected = [_STATES[2, 0], _STATES[0, 1], _STATES[3, 2]]
  np.testing.assert_array_equal(
    _describe(environments.final_descriptor), expected
  )


def test_the_mean_descriptor_is_over_the_steps_of_the_episode():
  expected = [
    _STATES[:length, i].astype(np.float64).mean(0)
    for i, length in enumerate(_LENGTHS)
  ]
  np.testing.assert_allclose(
    _describe(environments.mean_descriptor), expected, rtol=1e-6
  )


def test_equal_descriptors_are_one_static_argument():
  def make():
    return environments.Descriptor(("x",), (0.0,), (1.0,), reward_offset=2.0)

  offset = jax.jit(lambda x: jnp.zeros(()) + x.reward_offset, static_argnums=0)
  assert offset(make()) == offset(make()) == 2
  assert offset._cache_size() == 1
  assert make().function is environments.final_descriptor


@pytest.mark.parametrize("lower, upper, offset, message", [
  ((0.0,), (1.0, 1.0), 0.0, "differ in length; give one of each"),
  ((0.0, 1.0), (1.0, 1.0), 0.0, "must be below"),
  ((0.0, 0.0), (1.0, 1.0), -1.0, "reward_offset=-1.0 must be"),
  ((0.0, 0.0), (1.0, 1.0), float("nan"), "reward_offset=nan must be"),
])
def test_a_senseless_descriptor_is_refused(lower, upper, offset, message):
  with pytest.raises(ValueError, match=message):
    environments.Descriptor(("x", "y"), lower, upper, reward_offset=offset)


def test_a_users_descriptor_replaces_that_of_the_environment():
  positive = environments.Descriptor(("positive",), (0.0,), (1.0,))
  single = environments.with_descriptor(
    toy.Walk(limit=3), lambda state: state.obs[:1] > 0, positive
  )
  # The rest of the environment is still there.
  assert single.limit == 3
  assert copy.copy(single).env is single.env
  with pytest.raises(AttributeError, match="'Walk' .* 'no_such'"):
    _ = single.no_such
  env = environments.Environment(single, episode_length=5)
  assert env.descriptor == positive
  state = env.reset(jax.random.split(jax.random.key(0), 2))
  state = env.step(state, jnp.array([[1.0], [-1.0]]))
  np.testing.assert_array_equal(state.info["state_descriptor"], [[1], [0]])
