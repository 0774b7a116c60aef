"""Tests of the states in which episodes begin."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from qdrl_haiku import environments, skills, training
from qdrl_haiku.training import generation as generation_lib
from qdrl_haiku.training import initial_states
from qdrl_haiku.training import population as population_lib
from tests import jaxprs
from tests.training import common

_KEY = jax.random.key(0)


class _Marked(common.Drift):
  """Has an arctangent in its reset, to be found in a jaxpr."""

  def reset(self, key):
    state = super().reset(key)
    return state.replace(obs=state.obs + 0 * jnp.arctan(state.obs))


def _setup(env=None, episode_length=5, **config):
  env = environments.Environment(
    env or common.Drift(), episode_length=episode_length
  )
  return common.setup(**config)._replace(env=env, eval_env=env)


def test_neither_training_nor_evaluation_holds_a_reset():
  setup = _setup(_Marked())
  population, initial = jax.eval_shape(
    lambda: (
      training.init_population(setup, _KEY),
      population_lib.draw_initial_states(setup, _KEY, 1),
    )
  )
  train = functools.partial(generation_lib.train, setup)
  arguments = population, initial.pool, _KEY
  assert not jaxprs.named(train, "atan", *arguments)
  population, trained = jax.eval_shape(train, *arguments)
  evaluate = functools.partial(generation_lib.evaluate, setup)
  arguments = population, trained, initial.evaluation, _KEY
  assert not jaxprs.named(evaluate, "atan", *arguments)
  draw = functools.partial(population_lib.draw_initial_states, setup, _KEY)
  assert len(jaxprs.named(draw, "atan", 1)) == 1


def test_of_two_environments_each_draws_its_own_states():
  setup = _setup()._replace(eval_env=_setup(_Marked()).env)
  draw = functools.partial(population_lib.draw_initial_states, setup, _KEY)
  assert len(jaxprs.named(draw, "atan", 1)) == 1
  initial = draw(1)
  alone = initial_states.draw_pool(
    setup, population_lib.member_keys(_KEY, 1, setup.config.population_size)
  )
  np.testing.assert_array_equal(initial.pool.obs, alone.obs)


def test_instances_begin_with_skills_of_their_own():
  alone = environments.Environment(common.Drift(), episode_length=5)
  env = environments.SkillEnvironment(alone, skills.categorical(3))
  setup = _setup(population_size=2, num_envs=6)._replace(env=env, eval_env=env)
  initial = population_lib.draw_initial_states(setup, _KEY, 0)
  keys = population_lib.member_keys(_KEY, 0, 2)
  first = initial_states.first_states(setup, keys, initial.pool)
  chosen = np.argmax(first.obs[..., -3:], axis=-1)
  np.testing.assert_array_equal(chosen, [[0, 1, 2, 0, 1, 2]] * 2)
  again = initial_states.first_states(setup, keys)
  np.testing.assert_array_equal(first.obs, again.obs)


def test_one_environment_draws_what_two_alike_do():
  setup = _setup()
  two = setup._replace(eval_env=_setup().env)
  assert two.eval_env is not two.env
  one, other = (
    population_lib.draw_initial_states(x, _KEY, 1) for x in (setup, two)
  )
  for x, y in zip(one, other, strict=True):
    np.testing.assert_allclose(x.obs, y.obs, rtol=1e-6)


def test_no_two_members_instances_or_generations_share_an_initial_state():
  setup = _setup(population_size=4, num_envs=3, pool_size=2)
  drawn = [
    population_lib.draw_initial_states(setup, _KEY, generation)
    for generation in range(3)
  ]
  points = np.concatenate(
    [
      np.asarray(x.obs).reshape(-1, 2)
      for initial in drawn
      for x in (initial.pool, initial.evaluation)
    ]
  )
  assert drawn[0].pool.obs.shape == (4, 3, 2, 2)
  assert len(np.unique(points, axis=0)) == len(points)


def test_a_pool_is_distributed_as_resets_are():
  setup = _setup(population_size=2, num_envs=50, pool_size=100)
  keys = population_lib.member_keys(_KEY, 1, 2)
  points = np.asarray(initial_states.draw_pool(setup, keys).obs).reshape(-1, 2)
  assert len(points) == 10_000
  for x in points.T:
    # `Drift` begins at normally distributed points.
    assert stats.kstest(x.astype(np.float64), "norm").pvalue > 1e-3
  assert abs(np.corrcoef(points.T)[0, 1]) < 0.03


def test_members_begin_in_the_first_states_of_generation_0():
  setup = _setup(num_envs=4)
  pool = population_lib.draw_initial_states(setup, _KEY, 0).pool
  population = training.init_population(setup, _KEY)
  np.testing.assert_array_equal(
    population.members.environment.obs, pool.obs[:, :, 0]
  )
  given = training.init_population(setup, _KEY, pool)
  common.assert_bits_equal(given.members, population.members)


@pytest.mark.parametrize(
  ("pool_size", "reused"), [(1, 2 * 3), (3, 2 * 1), (4, 0)]
)
def test_episodes_that_begin_from_a_used_state_are_counted(pool_size, reused):
  # Two instances with 20 steps each: four episodes of five steps end.
  setup = _setup(
    num_envs=2,
    perturbation_interval=40,
    pool_size=pool_size,
    grad_updates_per_step=0.5,
  )
  population = training.init_population(setup, _KEY)
  environment = population.members.environment
  steps = jnp.zeros_like(environment.info["steps"])
  environment = environment.replace(info=environment.info | {"steps": steps})
  keys = population_lib.member_keys(_KEY, 1, setup.config.population_size)
  train = jax.jit(functools.partial(training.train_members, setup))
  members, metrics, _ = train(
    population.members._replace(
      environment=environment, pool=initial_states.draw_pool(setup, keys)
    ),
    population.hyperparams,
    keys,
  )
  np.testing.assert_array_equal(metrics["reused_initial_states"], reused)
  assert members.pool == ()
