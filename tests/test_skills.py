"""Tests of the priors that skills are drawn from."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from qdrl_haiku import skills

_CIRCLE, _SPHERE = skills.sphere(2), skills.sphere(3)
_CATEGORICAL, _NORMAL = skills.categorical(5), skills.normal(3)


def _samples(prior, n=3000):
  keys = jax.random.split(jax.random.key(0), n)
  return np.asarray(jax.jit(jax.vmap(prior.sample))(keys))


def test_categorical_samples_are_one_hot_and_equally_likely():
  samples = _samples(_CATEGORICAL)
  np.testing.assert_array_equal(np.sort(samples, axis=1)[:, :4], 0.0)
  np.testing.assert_array_equal(samples.max(axis=1), 1.0)
  assert stats.chisquare(samples.sum(axis=0)).pvalue > 0.01


@pytest.mark.parametrize("prior", [_CIRCLE, _SPHERE])
def test_sphere_samples_are_uniform_and_of_length_one(prior):
  samples = _samples(prior)
  lengths = np.linalg.norm(samples, axis=1)
  np.testing.assert_allclose(lengths, 1.0, rtol=1e-6)
  turns = np.arctan2(samples[:, 1], samples[:, 0]) / (2 * np.pi) + 0.5
  assert stats.kstest(turns, "uniform").pvalue > 0.01
  if prior.size == 3:
    # Uniform in height and, at every height, in the angle around it.
    assert stats.kstest(samples[:, 2], "uniform", (-1.0, 2.0)).pvalue > 0.01
    assert abs(np.corrcoef(samples[:, 2], turns)[0, 1]) < 0.05


def test_normal_samples_are_independent_and_standard():
  samples = _samples(_NORMAL)
  for column in samples.T:
    assert stats.kstest(column, "norm").pvalue > 0.01
  assert np.all(np.abs(np.corrcoef(samples.T) - np.eye(3)) < 0.05)


@pytest.mark.parametrize(("prior", "expected"), [
  (_CATEGORICAL, lambda z: -np.log(5)),
  (_CIRCLE, lambda z: -np.log(2 * np.pi)),
  (_SPHERE, lambda z: -np.log(4 * np.pi)),
  (_NORMAL, lambda z: stats.norm.logpdf(z).sum()),
], ids=["categorical", "circle", "sphere", "normal"])
def test_every_kind_has_the_density_of_its_formula(prior, expected):
  # What a discriminator that knows nothing puts out; its reward is 0.
  raw_scale = np.log(np.expm1(1.0 - 1e-3)) * (prior is _NORMAL)
  ignorant = jnp.full(prior.parameter_size, raw_scale)
  ignorant = ignorant.at[: prior.size].set(0.0)

  @jax.jit
  @jax.vmap
  def use(key):
    skill = prior.sample(key)
    log_prob = prior.log_prob(skill)
    ones = jnp.ones(prior.parameter_size)
    loss = prior.discriminator_loss(ones, skill)
    rewards = [prior.reward(x, skill, log_prob) for x in (ones, ignorant)]
    return skill, log_prob, loss, *rewards

  skill, log_prob, loss, reward, zero = use(
    jax.random.split(jax.random.key(0), 20))
  assert skill.shape == (20, prior.size) and skill.dtype == jnp.float32
  assert log_prob.shape == loss.shape == (20,)
  np.testing.assert_allclose(
    log_prob, [expected(z) for z in np.float64(skill)], rtol=1e-6)
  np.testing.assert_allclose(reward, -loss - log_prob, rtol=1e-5)
  np.testing.assert_allclose(zero, 0.0, atol=2e-6)


@pytest.mark.parametrize(("prior", "skill", "expected"), [
  (skills.categorical(3), np.int32(2), [0.0, 0.0, 1.0]),
  (skills.categorical(3), [0, 1, 0], [0.0, 1.0, 0.0]),
  (_CIRCLE, [3.0, -4.0], [0.6, -0.8]),
  (_CIRCLE, [1e30, 0.0], [1.0, 0.0]),
  (skills.normal(2), [0.5, -3.0], [0.5, -3.0])])
def test_constant_always_draws_the_one_skill(prior, skill, expected):
  sample = skills.constant_skill(prior, skill).sample(jax.random.key(0))
  assert sample.dtype == np.float32
  np.testing.assert_allclose(sample, expected, rtol=1e-7)


@pytest.mark.parametrize(("prior", "skill", "message"), [
  (skills.categorical(3), -1, "skill is -1: give an index from 0 to 2"),
  (skills.categorical(3), [1, 1, 0], "one-hot vector of 3"),
  (_CIRCLE, [0.0, 0.0], "not all 0"),
  (_CIRCLE, [1.0, 0.0, 0.0], "give 2 finite numbers")])
def test_constant_refuses_what_is_no_skill_of_the_prior(prior, skill, message):
  with pytest.raises(ValueError, match=message):
    skills.constant_skill(prior, skill)


def test_directions_in_more_than_three_dimensions_are_refused():
  with pytest.raises(ValueError, match="unit sphere, got 4; .*in Python"):
    skills.sphere(4)


@pytest.mark.parametrize(("prior", "parameters", "expected"), [
  (skills.categorical(3), [[0.1, 2.0, 1.0], [-1.0, -3.0, -2.0]],
   [[0, 1, 0], [1, 0, 0]]),
  (skills.sphere(2), [[3.0, -4.0], [0.0, 0.0]], [[0.6, -0.8], [1.0, 0.0]]),
  (skills.normal(2), [[3.0, -4.0, 1.0, 1.0]], [[3.0, -4.0]])])
def test_the_mode_is_the_likeliest_skill_and_always_one(
  prior, parameters, expected
):
  found = prior.mode(jnp.array(parameters))
  np.testing.assert_allclose(found, expected, rtol=1e-6)
  losses = [
    prior.discriminator_loss(jnp.array(parameters[0]), skill)
    for skill in (found[0], jnp.roll(found[0], 1))]
  assert losses[0] < losses[1]
