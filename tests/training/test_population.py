"""Tests of how a population begins, and of keys."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qdrl_haiku.training import members
from tests.training import common

_KEY = common.KEY


def test_a_member_begins_by_the_key_of_generation_0_and_its_number():
  setup = common.setup()
  population = common.init(setup)
  first = jax.random.fold_in(_KEY, 0)
  for i in range(4):
    expected = setup.learner.init(jax.random.fold_in(first, i)).point
    np.testing.assert_array_equal(population.members.learner.point[i], expected)
  np.testing.assert_array_equal(
    population.hyperparams["learning_rate"], np.full(4, np.float32(0.01))
  )
  starts = np.asarray(population.members.environment.obs).reshape(8, 2)
  assert len(np.unique(starts, axis=0)) == 8


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


def test_keys_may_be_one_of_the_older_kind_or_one_for_each_member():
  typed = jax.random.key_data(members.member_keys(_KEY, 1, 4))
  older = members.member_keys(jax.random.PRNGKey(0), 1, 4)
  np.testing.assert_array_equal(jax.random.key_data(older), typed)
  # Then every member is the first one of a run of its own.
  each = members.member_keys(jnp.stack([jax.random.key(9), _KEY]), 1, 2)
  np.testing.assert_array_equal(jax.random.key_data(each[1]), typed[0])
