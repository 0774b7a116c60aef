"""Tests of keys, and of how a population begins."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qdrl_haiku import controllers, training
from qdrl_haiku.training import population as population_lib
from tests.training import common


def _data(keys):
  return jax.device_get(jax.random.key_data(keys))


def test_a_members_key_is_that_of_the_generation_and_its_number():
  run_key = jax.random.key(3)
  keys = population_lib.member_keys(run_key, 7, 5)
  for i in range(5):
    expected = jax.random.fold_in(jax.random.fold_in(run_key, 7), i)
    np.testing.assert_array_equal(_data(keys[i]), _data(expected))


def test_a_members_key_does_not_depend_on_the_population_size():
  run_key = jax.random.key(0)
  few, many = (population_lib.member_keys(run_key, 2, p) for p in (3, 8))
  np.testing.assert_array_equal(_data(few), _data(many[:3]))


def test_with_a_key_each_every_member_has_the_key_of_member_0():
  run_keys = jax.random.split(jax.random.key(0), 3)
  keys = population_lib.member_keys(run_keys, 4, 3)
  for i in range(3):
    alone = population_lib.member_keys(run_keys[i], 4, 1)
    np.testing.assert_array_equal(_data(keys[i]), _data(alone[0]))


def test_the_controllers_key_is_no_members():
  run_key = jax.random.key(0)
  members = _data(population_lib.member_keys(run_key, 1, 100)).tolist()
  controller = _data(population_lib.controller_key(run_key, 1)).tolist()
  assert controller not in members


@pytest.fixture(scope="module")
def population():
  setup = common.setup(controllers.pbt(controllers.PBTConfig(), common.SPACE))
  return training.init_population(setup, jax.random.key(0))


def test_a_key_of_the_older_kind_begins_the_same_population(population):
  setup = common.setup(controllers.pbt(controllers.PBTConfig(), common.SPACE))
  older = training.init_population(setup, jax.random.PRNGKey(0))
  for name in ("learner", "replay"):
    jax.tree.map(
      np.testing.assert_array_equal,
      getattr(older.members, name),
      getattr(population.members, name),
    )
  jax.tree.map(
    np.testing.assert_array_equal, older.hyperparams, population.hyperparams
  )


def test_members_begin_different_from_each_other(population):
  points = np.asarray(population.members.learner.point)
  assert len(np.unique(points, axis=0)) == 4
  starts = np.asarray(population.members.environment.obs).reshape(8, 2)
  assert len(np.unique(starts, axis=0)) == 8
  assert len(set(np.asarray(population.hyperparams["learning_rate"]))) == 4


def test_a_population_begins_with_nothing_learned_or_returned(population):
  assert np.asarray(population.members.replay.size).tolist() == [0] * 4
  assert np.isnan(np.asarray(population.recent_fitness)).all()
  assert int(population.generation) == 0


def test_without_a_controller_the_learners_hyperparameters_are_used():
  population = jax.eval_shape(
    lambda: training.init_population(common.setup(), jax.random.key(0))
  )
  assert population.hyperparams["learning_rate"].shape == (4,)
  concrete = jax.jit(
    lambda: training.init_population(common.setup(), jax.random.key(0))[1]
  )()
  np.testing.assert_array_equal(concrete["learning_rate"], np.float32(0.01))


def test_a_buffer_stores_only_the_extras_that_are_asked_for():
  env_setup = common.setup()
  assert env_setup.config.replay_extras == ()
  population = jax.eval_shape(
    functools.partial(training.init_population, env_setup), jax.random.key(0)
  )
  storage = population.members.replay.storage
  assert storage.extras == {}
  assert storage.observation.shape == (4, 48, 2)


def test_an_extra_that_there_is_not_is_refused():
  with pytest.raises(ValueError) as caught:
    training.init_population(
      common.setup(replay_extras=("skill",)), jax.random.key(0)
    )
  assert str(caught.value) == (
    "replay_extras name skill, which transitions of this environment don't "
    "have; name some of truncation."
  )


def _reading_truncations():
  learner = common.quadratic_learner()

  def update(state, hyperparams, transitions, key):
    ends = jnp.sum(transitions.extras["truncation"])
    state, metrics = learner.update(state, hyperparams, transitions, key)
    return state, metrics | {"ends": ends}

  return learner._replace(update=update)


@pytest.mark.parametrize("n_step", [1, 3])
def test_a_learner_that_reads_what_is_not_stored_is_refused(n_step):
  learner = _reading_truncations()
  if n_step > 1:
    learner = learner._replace(
      hyperparams=learner.hyperparams | {"discount": 0.9}
    )
  with pytest.raises(ValueError, match="replay_extras=.'truncation',.. names"):
    training.init_population(
      common.setup(learner=learner, n_step=n_step), jax.random.key(0)
    )
  setup = common.setup(
    learner=learner, n_step=n_step, replay_extras=("truncation",)
  )
  population = jax.eval_shape(
    functools.partial(training.init_population, setup), jax.random.key(0)
  )
  extras = population.members.replay.storage.extras
  assert extras["truncation"].shape == (4, 48)


def test_a_learner_without_hyperparameters_is_refused():
  learner = common.quadratic_learner()._replace(hyperparams={})
  with pytest.raises(ValueError, match="hyperparams={} have no number"):
    training.init_population(common.setup(learner=learner), jax.random.key(0))


def test_settings_that_make_no_schedule_are_refused():
  with pytest.raises(ValueError, match="perturbation_interval 17"):
    training.init_population(
      common.setup(perturbation_interval=17), jax.random.key(0)
    )


def test_more_parents_and_replaced_than_members_are_refused():
  config = controllers.PBTConfig(num_parents=3, num_replaced=3)
  setup = common.setup(controllers.pbt(config, common.SPACE))
  with pytest.raises(ValueError, match="population_size=4"):
    training.init_population(setup, jax.random.key(0))


@pytest.mark.slow
def test_a_member_with_a_key_of_its_own_is_a_run_of_its_own():
  keys = jax.random.split(jax.random.key(5), 2)
  together = common.setup(population_size=2)
  alone = common.setup(population_size=1)

  def two_generations(setup, key):
    population = training.init_population(setup, key)
    population, _ = training.train_generation(setup, population, key)
    population, report = training.train_generation(setup, population, key)
    return population._replace(generation=()), report.evaluation

  both = jax.jit(functools.partial(two_generations, together))(keys)
  one = jax.jit(functools.partial(two_generations, alone))
  for i in range(2):
    actual, expected = common.member(both, i), common.member(one(keys[i]), 0)
    common_names = common.leaves(expected)
    for name, x in common.leaves(actual).items():
      np.testing.assert_allclose(
        x, common_names[name], rtol=1e-5, atol=1e-6, err_msg=name
      )
