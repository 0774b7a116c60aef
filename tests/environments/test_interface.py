"""Tests of descriptors, of states and of episodes."""

import copy

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qdrl_haiku import environments
from tests import toy


def test_descriptors_of_episodes_are_of_their_last_step_and_of_the_mean():
  # Episodes of 3, 1 and 4 steps, and what follows them.
  states = np.random.default_rng(0).normal(size=(4, 3, 2)).astype(np.float32)
  mask = np.arange(4)[:, None] < np.array([3, 1, 4])
  states[~mask] = np.nan
  final, mean = (
    jax.vmap(function, in_axes=1)(jnp.array(states), jnp.array(mask))
    for function in (
      environments.final_descriptor, environments.mean_descriptor
    )
  )  # fmt: skip
  np.testing.assert_array_equal(final, states[[2, 0, 3], [0, 1, 2]])
  expected = np.nanmean(states.astype(np.float64), axis=0)
  np.testing.assert_allclose(mean, expected, rtol=1e-6)


@pytest.mark.parametrize("lower, upper, message", [
  ((0.0,), (1.0, 1.0), "differ in length; give one of each"),
  ((0.0, 1.0), (1.0, 1.0), "must be below"),
])
def test_a_senseless_descriptor_is_refused(lower, upper, message):
  with pytest.raises(ValueError, match=message):
    environments.Descriptor(("x", "y"), lower, upper)


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
  state = env.advance(state, jnp.array([[1.0], [-1.0]]))
  np.testing.assert_array_equal(state.info["state_descriptor"], [[1], [0]])
