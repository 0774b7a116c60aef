"""Tests of how a population begins, and of keys."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.training import common

_KEY = common.KEY
_SETUP = common.setup()
_INIT = jax.jit(lambda key: common.init(_SETUP, key))


@pytest.fixture(scope="module")
def population():
  return _INIT(_KEY)


def test_a_member_begins_by_the_key_of_generation_0_and_its_number(population):
  first = jax.random.fold_in(_KEY, 0)
  for i in range(4):
    expected = _SETUP.learner.init(jax.random.fold_in(first, i)).point
    np.testing.assert_array_equal(population.members.learner.point[i], expected)
  np.testing.assert_array_equal(
    population.hyperparams["learning_rate"], np.full(4, np.float32(0.01))
  )
  starts = np.asarray(population.members.environment.obs).reshape(8, 2)
  assert len(np.unique(starts, axis=0)) == 8


def test_a_key_of_the_older_kind_begins_the_same_population(population):
  common.assert_bits_equal(_INIT(jax.random.PRNGKey(0)), population)


@pytest.mark.slow
def test_what_a_member_becomes_depends_on_its_key_and_number_alone():
  """With a key of its own it is a run; others beside it change nothing."""
  keys = jax.random.split(jax.random.key(5), 2)

  def two_generations(population_size, key):
    setup = common.setup(population_size=population_size)
    state = common.init(setup, key)
    state, _ = common.step(setup, state, key)
    state, report = common.step(setup, state, key)
    return state._replace(generation=()), report.evaluation

  both = jax.jit(lambda keys: two_generations(2, keys))
  one = jax.jit(lambda key: two_generations(1, key))
  pairs = [(both(keys), i, keys[i]) for i in range(2)]
  for several, i, key in [*pairs, (both(keys[0]), 0, keys[0])]:
    actual = common.leaves(common.member(several, i))
    for name, x in common.leaves(common.member(one(key), 0)).items():
      np.testing.assert_allclose(
        actual[name], x, rtol=1e-5, atol=1e-6, err_msg=name
      )


def test_with_a_key_each_every_member_begins_as_member_0_does(population):
  keys = jnp.stack([jax.random.key(9), _KEY, _KEY, _KEY])
  np.testing.assert_array_equal(
    _INIT(keys).members.learner.point[1:],
    np.broadcast_to(population.members.learner.point[0], (3, 2)),
  )
