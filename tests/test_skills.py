"""Tests of the priors that skills are drawn from."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from qdrl_haiku import skills

_CIRCLE, _SPHERE = skills.sphere(2), skills.sphere(3)
_PRIORS = pytest.mark.parametrize(
  "prior",
  [
    skills.categorical(5),
    _CIRCLE,
    _SPHERE,
    skills.normal(1),
    skills.normal(3),
  ],
  ids=["categorical", "circle", "sphere", "number", "normal"],
)


@functools.cache
def _samples(prior, n=3000):
  keys = jax.random.split(jax.random.key(0), n)
  return np.asarray(jax.jit(jax.vmap(prior.sample))(keys))


def test_categorical_samples_are_one_hot_and_equally_likely():
  samples = _samples(skills.categorical(5))
  np.testing.assert_array_equal(np.sort(samples, axis=1)[:, :4], 0.0)
  np.testing.assert_array_equal(samples.max(axis=1), 1.0)
  assert stats.chisquare(samples.sum(axis=0)).pvalue > 0.01


@pytest.mark.parametrize("prior", [_CIRCLE, _SPHERE], ids=["circle", "sphere"])
def test_sphere_samples_are_of_length_one(prior):
  lengths = np.linalg.norm(_samples(prior), axis=1)
  np.testing.assert_allclose(lengths, 1.0, rtol=1e-6)


def test_circle_samples_are_uniform():
  samples = _samples(_CIRCLE)
  turns = np.arctan2(samples[:, 1], samples[:, 0]) / (2 * np.pi) + 0.5
  assert stats.kstest(turns, "uniform").pvalue > 0.01


def test_sphere_samples_are_uniform():
  samples = _samples(_SPHERE)
  # Uniform in height and, at every height, in the angle around it.
  turns = np.arctan2(samples[:, 1], samples[:, 0]) / (2 * np.pi) + 0.5
  assert stats.kstest(samples[:, 2], "uniform", (-1.0, 2.0)).pvalue > 0.01
  assert stats.kstest(turns, "uniform").pvalue > 0.01
  assert abs(np.corrcoef(samples[:, 2], turns)[0, 1]) < 0.05


def test_normal_samples_are_independent_and_standard():
  samples = _samples(skills.normal(3))
  for column in samples.T:
    assert stats.kstest(column, "norm").pvalue > 0.01
  assert np.all(np.abs(np.corrcoef(samples.T) - np.eye(3)) < 0.05)


@pytest.mark.parametrize(
  ("prior", "expected"),
  [
    (skills.categorical(5), lambda z: -np.log(5)),
    (_CIRCLE, lambda z: -np.log(2 * np.pi)),
    (_SPHERE, lambda z: -np.log(4 * np.pi)),
    (skills.normal(3), lambda z: stats.norm.logpdf(z).sum()),
  ],
  ids=["categorical", "circle", "sphere", "normal"],
)
def test_log_prob_is_the_formula(prior, expected):
  samples = _samples(prior, 20)
  actual = jax.jit(jax.vmap(prior.log_prob))(samples)
  assert actual.shape == (20,)
  np.testing.assert_allclose(
    actual, [expected(z) for z in samples.astype(np.float64)], rtol=1e-6
  )


@_PRIORS
def test_every_kind_is_used_alike(prior):
  @jax.jit
  def use(key):
    skill = prior.sample(key)
    parameters = jnp.ones(prior.parameter_size)
    loss = prior.discriminator_loss(parameters, skill)
    return skill, loss, prior.reward(parameters, skill, prior.log_prob(skill))

  skill, loss, reward = use(jax.random.key(1))
  assert skill.shape == (prior.size,)
  assert skill.dtype == jnp.float32
  assert loss.shape == reward.shape == ()
  np.testing.assert_allclose(reward, -loss - prior.log_prob(skill), rtol=1e-5)


def _rewards(prior, parameters):
  def reward(skill):
    return prior.reward(parameters, skill, prior.log_prob(skill))

  return jax.jit(jax.vmap(reward))(_samples(prior, 20))


@pytest.mark.parametrize(
  "prior",
  [skills.categorical(5), _CIRCLE, _SPHERE],
  ids=["categorical", "circle", "sphere"],
)
def test_reward_of_a_discriminator_that_knows_nothing_is_zero(prior):
  rewards = _rewards(prior, jnp.zeros(prior.parameter_size))
  np.testing.assert_array_equal(rewards, np.zeros(20))


def test_reward_of_a_normal_discriminator_at_the_prior_is_zero():
  prior = skills.normal(2)
  raw_scale = np.log(np.expm1(1.0 - 1e-3))
  parameters = jnp.array([0.0, 0.0, raw_scale, raw_scale])
  np.testing.assert_allclose(_rewards(prior, parameters), 0.0, atol=2e-6)


@pytest.mark.parametrize(
  ("prior", "skill", "expected"),
  [
    (skills.categorical(3), 0, [1.0, 0.0, 0.0]),
    (skills.categorical(3), np.int32(2), [0.0, 0.0, 1.0]),
    (skills.categorical(3), [0, 1, 0], [0.0, 1.0, 0.0]),
    (_CIRCLE, [3.0, -4.0], [0.6, -0.8]),
    (_SPHERE, jnp.array([0.0, 0.0, 0.1]), [0.0, 0.0, 1.0]),
    (_CIRCLE, [1e30, 0.0], [1.0, 0.0]),
    (skills.normal(2), [0.5, -3.0], [0.5, -3.0]),
  ],
)
def test_constant_always_draws_the_one_skill(prior, skill, expected):
  keys = jax.random.split(jax.random.key(0), 4)
  samples = jax.vmap(skills.constant(prior, skill).sample)(keys)
  assert samples.dtype == np.float32
  np.testing.assert_allclose(samples, [expected] * 4, rtol=1e-7)


@pytest.mark.parametrize(
  ("prior", "skill", "message"),
  [
    (skills.categorical(3), -1, "skill is -1: give an index from 0 to 2"),
    (skills.categorical(3), 3, "skill is 3"),
    (skills.categorical(3), 1.0, "skill is 1.0"),
    (skills.categorical(3), True, "skill is True"),
    (skills.categorical(3), [1, 0], "one-hot vector of 3"),
    (skills.categorical(3), [1, 0, 0, 0], "one-hot vector of 3"),
    (skills.categorical(3), [0, 2, 0], "one-hot vector of 3"),
    (skills.categorical(3), [1, 1, 0], "one-hot vector of 3"),
    (skills.categorical(3), [0, 0, 0], "one-hot vector of 3"),
    (_CIRCLE, [0.0, 0.0], "not all 0"),
    (_CIRCLE, [1.0, 0.0, 0.0], "give 2 finite numbers"),
    (_CIRCLE, 1, "give 2 finite numbers"),
    (_CIRCLE, [np.nan, 1.0], "give 2 finite numbers"),
    (skills.normal(2), [1.0], "give 2 finite numbers"),
    (skills.normal(2), [[1.0, 0.0]], "give 2 finite numbers"),
    (skills.normal(2), [np.inf, 1.0], "give 2 finite numbers"),
    (skills.normal(2), [1e39, 1.0], "give 2 finite numbers"),
  ],
)
def test_constant_refuses_what_is_no_skill_of_the_prior(prior, skill, message):
  with pytest.raises(ValueError, match=message):
    skills.constant(prior, skill)


@pytest.mark.parametrize(
  ("factory", "size", "message"),
  [
    (skills.categorical, 1, "num_skills must be at least 2, got 1"),
    (skills.sphere, 1, "size must be 2 or 3 on the unit sphere, got 1"),
    (skills.sphere, 4, "size must be 2 or 3 on the unit sphere, got 4"),
    (skills.normal, 0, "size must be at least 1, got 0"),
  ],
)
def test_sizes_that_make_no_skill_are_refused(factory, size, message):
  with pytest.raises(ValueError, match=message):
    factory(size)
