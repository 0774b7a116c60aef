"""Tests of the states in which episodes begin."""

import functools

import jax.numpy as jnp
import numpy as np
from scipy import stats

from qdrl_haiku import environments, skills
from qdrl_haiku.training import generation as generation_lib
from tests import jaxprs
from tests.training import common

_KEY = common.KEY


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
  return generation_lib.generation_method(setup).draw(
    setup, _KEY, generation, size
  )


def test_all_of_a_generations_resets_are_one_that_is_drawn_before():
  setup = _setup(_Marked())
  step = functools.partial(common.step, setup)
  assert len(jaxprs.named(step, "atan", common.shapes(setup), _KEY)) == 1


def test_instances_begin_with_skills_of_their_own():
  alone = environments.Environment(common.Drift(), episode_length=5)
  env = environments.SkillEnvironment(alone, skills.categorical(3))
  setup = _setup(population_size=2, num_envs=6, perturbation_interval=12)
  setup = setup._replace(env=env, eval_env=env)
  obs = common.init(setup).members.environment.obs
  np.testing.assert_array_equal(
    np.argmax(obs[..., -3:], axis=-1), [[0, 1, 2, 0, 1, 2]] * 2
  )


def test_one_environment_draws_what_two_alike_do():
  setup = _setup()
  two = setup._replace(eval_env=_setup().env)
  assert two.eval_env is not two.env
  for x, y in zip(_draw(setup, 1), _draw(two, 1), strict=True):
    np.testing.assert_allclose(x.obs, y.obs, rtol=1e-6)


def test_no_two_members_instances_or_generations_share_an_initial_state():
  setup = _setup(population_size=4, num_envs=3, pool_size=2)
  drawn = [_draw(setup, generation) for generation in range(3)]
  points = np.concatenate(
    [np.reshape(x.obs, (-1, 2)) for initial in drawn for x in initial]
  )
  assert drawn[0].pool.obs.shape == (4, 3, 2, 2)
  # `Drift` begins at normally distributed points.
  assert stats.kstest(points.ravel(), "norm").pvalue > 1e-3
  assert len(np.unique(points, axis=0)) == len(points)
