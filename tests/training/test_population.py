"""Tests of how a population begins, and of keys."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qdrl_haiku import controllers
from tests.training import common

_KEY = common.KEY
_SETUP = common.setup(controllers.pbt(controllers.PBTConfig(), common.SPACE))


@pytest.fixture(scope="module")
def population():
  return jax.jit(lambda key: common.init(_SETUP, key))(_KEY)


def test_a_member_begins_by_the_key_of_generation_0_and_its_number(population):
  first = jax.random.fold_in(_KEY, 0)
  for i in range(4):
    expected = _SETUP.learner.init(jax.random.fold_in(first, i)).point
    np.testing.assert_array_equal(population.members.learner.point[i], expected)


def test_with_a_key_each_every_member_begins_as_member_0_does(population):
  setup = common.setup(population_size=2)
  keys = jnp.stack([jax.random.key(9), _KEY])
  points = common.init(setup, keys).members.learner.point
  expected = population.members.learner.point[0]
  np.testing.assert_array_equal(points[1], expected)


def test_a_key_of_the_older_kind_begins_the_same_population(population):
  older = jax.jit(lambda key: common.init(_SETUP, key))(jax.random.PRNGKey(0))
  common.assert_bits_equal(older, population)


def test_members_begin_different_from_each_other(population):
  points = np.asarray(population.members.learner.point)
  assert len(np.unique(points, axis=0)) == 4
  starts = np.asarray(population.members.environment.obs).reshape(8, 2)
  assert len(np.unique(starts, axis=0)) == 8
  assert len(set(np.asarray(population.hyperparams["learning_rate"]))) == 4


def test_a_population_begins_with_nothing_learned_or_returned(population):
  assert np.asarray(population.members.replay.size).tolist() == [0] * 4
  assert np.isnan(np.asarray(population.population.recent_fitness)).all()
  assert int(population.generation) == 0


def test_without_a_controller_the_learners_hyperparameters_are_used():
  hyperparams = jax.jit(lambda: common.init(common.setup()).hyperparams)()
  np.testing.assert_array_equal(
    hyperparams["learning_rate"], np.full(4, np.float32(0.01))
  )


@pytest.mark.parametrize("names", [(), ("truncation",)])
def test_a_buffer_stores_only_the_extras_that_are_asked_for(names):
  storage = common.shapes(common.setup(replay_extras=names)).members.replay[0]
  assert set(storage.extras) == set(names)
  assert storage.observation.shape == (4, 48, 2)


@pytest.mark.slow
def test_what_a_member_becomes_depends_on_its_key_and_number_alone():
  """With a key of its own it is a run; others beside it change nothing."""
  keys = jax.random.split(jax.random.key(5), 2)
  alone = common.setup(population_size=1)
  together = common.setup(population_size=2)

  def two_generations(setup, key):
    state = common.init(setup, key)
    state, _ = common.step(setup, state, key)
    state, report = common.step(setup, state, key)
    return state._replace(generation=()), report.evaluation

  both = jax.jit(lambda keys: two_generations(together, keys))
  one = jax.jit(lambda key: two_generations(alone, key))
  pairs = [(both(keys), i, keys[i]) for i in range(2)]
  for several, i, key in [*pairs, (both(keys[0]), 0, keys[0])]:
    actual = common.leaves(common.member(several, i))
    for name, x in common.leaves(common.member(one(key), 0)).items():
      np.testing.assert_allclose(
        actual[name], x, rtol=1e-5, atol=1e-6, err_msg=name
      )
