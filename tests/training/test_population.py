"""Tests of how a population and its episodes begin, and of keys."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from qdrl_haiku import environments, skills, training
from qdrl_haiku.training import members
from tests import jaxprs
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
    population.hyperparams["learning_rate"], np.full(4, np.float32(0.01)))
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
        actual[name], x, rtol=1e-5, atol=1e-6, err_msg=name)


def test_keys_may_be_one_of_the_older_kind_or_one_for_each_member():
  typed = jax.random.key_data(members.member_keys(_KEY, 1, 4))
  older = members.member_keys(jax.random.PRNGKey(0), 1, 4)
  np.testing.assert_array_equal(jax.random.key_data(older), typed)
  # Then every member is the first one of a run of its own.
  each = members.member_keys(jnp.stack([jax.random.key(9), _KEY]), 1, 2)
  np.testing.assert_array_equal(jax.random.key_data(each[1]), typed[0])


class _Marked(common.Drift):
  """Has an arctangent in its reset, to be found in a jaxpr."""

  def reset(self, key):
    state = super().reset(key)
    return state.replace(obs=state.obs + 0 * jnp.arctan(state.obs))


def _setup(env=None, **config):
  env = environments.Environment(env or common.Drift(), episode_length=5)
  return common.setup(**config)._replace(env=env, eval_env=env)


def _draw(setup, generation):
  """The pool and the evaluation's states of a generation."""
  size = setup.config.population_size
  return training.prepare(setup).draw(_KEY, generation, size)


def test_all_of_a_generations_resets_are_one_that_is_drawn_before():
  setup = _setup(_Marked())
  step = functools.partial(common.step, setup)
  assert len(jaxprs.named(step, "atan", common.shapes(setup), _KEY)) == 1


def test_instances_begin_with_skills_of_their_own():
  alone = environments.Environment(common.Drift(), episode_length=5)
  env = environments.SkillEnvironment(alone, skills.categorical(3))
  setup = _setup(population_size=2, num_envs=4, perturbation_interval=8)
  setup = setup._replace(env=env, eval_env=env)
  obs = common.init(setup).members.environment.obs
  np.testing.assert_array_equal(
    np.argmax(obs[..., -3:], axis=-1), [[0, 1, 2, 0]] * 2)


def test_one_environment_draws_what_two_alike_do():
  setup = _setup()
  two = setup._replace(eval_env=_setup().env)
  assert two.eval_env is not two.env
  for x, y in zip(_draw(setup, 1), _draw(two, 1), strict=True):
    np.testing.assert_allclose(x.obs, y.obs, rtol=1e-6)


def test_no_two_members_instances_or_generations_share_an_initial_state():
  setup = _setup(
    population_size=4, num_envs=3, pool_size=2, perturbation_interval=18)
  drawn = [_draw(setup, generation) for generation in range(3)]
  points = np.concatenate(
    [np.reshape(x.obs, (-1, 2)) for initial in drawn for x in initial])
  assert drawn[0].pool.obs.shape == (4, 3, 2, 2)
  # `Drift` begins at normally distributed points.
  assert stats.kstest(points.ravel(), "norm").pvalue > 1e-3
  assert len(np.unique(points, axis=0)) == len(points)
