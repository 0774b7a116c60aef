import copy

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qdrl_haiku import environments
from tests import toy

# Episodes of 3, 1 and 4 steps, and what follows them.
LENGTHS = np.array([3, 1, 4])
STATES = np.random.default_rng(0).normal(size=(4, 3, 2)).astype(np.float32)
MASK = np.arange(4)[:, None] < LENGTHS
STATES[~MASK] = np.nan


def describe(function):
  return jax.vmap(function, in_axes=1)(jnp.array(STATES), jnp.array(MASK))


def test_the_final_descriptor_is_that_of_the_last_step():
  expected = [STATES[2, 0], STATES[0, 1], STATES[3, 2]]
  np.testing.assert_array_equal(
    describe(environments.final_descriptor), expected
  )


def test_the_mean_descriptor_is_over_the_steps_of_the_episode():
  expected = [
    STATES[:length, i].astype(np.float64).mean(0)
    for i, length in enumerate(LENGTHS)
  ]
  np.testing.assert_allclose(
    describe(environments.mean_descriptor), expected, rtol=1e-6
  )


def test_a_descriptor_is_a_static_argument():
  def make():
    return environments.Descriptor(
      ("x",), (0.0,), (1.0,), environments.mean_descriptor, 2.0
    )

  traces = []

  def offset(descriptor):
    traces.append(descriptor)
    return jnp.zeros(()) + descriptor.reward_offset

  offset = jax.jit(offset, static_argnums=0)
  assert offset(make()) == offset(make()) == 2
  assert len(traces) == 1


def test_by_default_an_episode_ends_where_its_descriptor_is():
  descriptor = environments.Descriptor(("x",), (0.0,), (1.0,))
  assert descriptor.function is environments.final_descriptor
  assert descriptor.reward_offset == 0


@pytest.mark.parametrize("offset", [-1.0, float("nan"), float("inf")])
def test_a_senseless_offset_is_refused(offset):
  with pytest.raises(ValueError, match=f"reward_offset={offset} must be"):
    environments.Descriptor(("x",), (0.0,), (1.0,), reward_offset=offset)


POSITIVE = environments.Descriptor(("positive",), (0.0,), (1.0,))


def positive(state):
  return state.obs[:1] > 0


def test_a_users_descriptor_replaces_that_of_the_environment():
  env = environments.Environment(
    environments.with_descriptor(toy.Walk(), positive, POSITIVE),
    episode_length=5,
  )
  assert env.descriptor == POSITIVE
  state = env.reset(jax.random.split(jax.random.key(0), 2))
  state = env.step(state, jnp.array([[1.0], [-1.0]]))
  np.testing.assert_array_equal(state.info["state_descriptor"], [[1], [0]])


def test_the_rest_of_the_environment_is_still_there():
  env = environments.with_descriptor(toy.Walk(limit=3), positive, POSITIVE)
  assert env.limit == 3
  assert copy.copy(env).env is env.env
  with pytest.raises(AttributeError, match="'Walk' .* 'no_such'"):
    _ = env.no_such


@pytest.mark.parametrize("env, message", [
  (object(), "no method 'reset'"),
  (environments.Environment(toy.Walk(), episode_length=5), "Walk is wrapped"),
])
def test_what_is_no_single_environment_gets_no_descriptor(env, message):
  with pytest.raises(ValueError, match=message):
    environments.with_descriptor(env, positive, POSITIVE)
