"""Tests of the bandit that draws values of choices, against plain loops."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qdrl_haiku.controllers import bandit

_ROUNDS = bandit._NUM_ROUNDS


def _chances(weights, number):
  """Algorithm's lines 3 to 7 in float64, its equation solved by bisection."""
  size = len(weights)
  if number < size:
    gamma = math.sqrt(
      size * math.log(size / number) / ((math.e - 1) * number * _ROUNDS)
    )
  else:
    gamma = bandit._EXPLORATION
  gamma = min(gamma, 1.0)
  capped, is_capped = weights, np.zeros(size, bool)
  if number < size and gamma < 1:
    share = (1 / number - gamma / size) / (1 - gamma)
    if weights.max() >= share * weights.sum():
      low, high = 0.0, weights.max()
      for _ in range(200):
        cap = (low + high) / 2
        too_low = cap < share * np.minimum(weights, cap).sum()
        low, high = (cap, high) if too_low else (low, cap)
      is_capped = weights >= high * (1 - 1e-12)
      capped = np.minimum(weights, high)
  return (1 - gamma) * capped / capped.sum() + gamma / size, is_capped, gamma


@pytest.mark.parametrize("size", [2, 7])
def test_chances_are_those_of_the_paper(size):
  random = np.random.default_rng(size)
  probabilities = jax.jit(bandit.bandit_probabilities)
  for number in range(1, size + 3):
    for power in (0.1, 1.0, 5.0):
      weights = np.exp(power * random.normal(size=size))
      weights = (weights / weights.sum()).astype(np.float32)
      found = probabilities(weights, jnp.int32(number))
      expected = _chances(weights.astype(np.float64), number)
      np.testing.assert_allclose(found[0], expected[0], atol=1e-5)
      np.testing.assert_array_equal(found[1], expected[1])
      np.testing.assert_allclose(found[2], expected[2], rtol=1e-5)
      if number < size:
        assert np.all(number * np.asarray(found[0]) <= 1 + 1e-5)


@pytest.mark.parametrize("number", [2, 5])
def test_values_are_drawn_as_often_as_their_chances_say(number):
  known = bandit.init_bandit([4, 2], 6)
  weights = jnp.array([0.5, 0.3, 0.15, 0.05])
  known = known._replace(weights=(weights, known.weights[1]))
  where = np.arange(6) < number
  keys = jax.random.split(jax.random.key(number), 4000)
  categories, drawn = jax.jit(
    jax.vmap(lambda key: bandit.draw_from_bandit(key, known, where))
  )(keys)
  found = np.asarray(categories[:, :number, 0], int)
  counts = np.stack([(found == c).sum(axis=1) for c in range(4)], axis=1)
  chances, is_capped, gamma = map(
    np.asarray, bandit.bandit_probabilities(weights, number)
  )
  np.testing.assert_allclose(counts.mean(axis=0), number * chances, atol=0.03)
  # Each member's draw alone has these probabilities too.
  for member in range(number):
    often = np.bincount(found[:, member], minlength=4) / len(keys)
    np.testing.assert_allclose(often, chances, atol=0.03)
  # No more often than can't be helped.
  assert np.all(counts <= np.ceil(number * chances - 1e-4))
  gains = np.asarray(drawn.gains)
  assert not gains[:, number:].any()
  expected = np.where(is_capped, 0, gamma / (4 * chances))[found]
  np.testing.assert_allclose(gains[:, :number, 0], expected, rtol=1e-5)


def test_weights_are_raised_as_the_paper_says():
  known = bandit.Bandit(
    (jnp.array([0.2, 0.3, 0.5]),),
    jnp.array([[0.4], [0.4], [0.3], [0.7], [0.0]]),
  )
  categories = jnp.array([[0.0], [0.0], [1.0], [2.0], [2.0]])
  rewards = jnp.array([1.0, 0.5, 0.8, jnp.nan, 1.0])
  after = bandit.update_bandit(known, categories, rewards)
  shared = math.e / (3 * _ROUNDS)
  expected = np.array([0.2 * math.exp(0.6), 0.3 * math.exp(0.24), 0.5]) + shared
  np.testing.assert_allclose(
    after.weights[0], expected / expected.sum(), rtol=1e-5
  )
  # Each draw teaches once.
  assert not np.any(after.gains)


def test_weights_stay_numbers_whatever_comes():
  draw, learn = jax.jit(bandit.draw_from_bandit), jax.jit(bandit.update_bandit)
  for reward in (0.0, 1.0, jnp.nan):
    known = bandit.init_bandit([2, 3], 4)
    for number in range(50):
      categories, known = draw(jax.random.key(number), known, jnp.ones(4, bool))
      known = learn(known, categories * 0, jnp.full(4, reward))
    for weights in known.weights:
      assert np.all(weights > 1e-4)
      np.testing.assert_allclose(np.sum(weights), 1.0, rtol=1e-5)
  # Where nobody is replaced nothing is drawn.
  _, drawn = draw(jax.random.key(0), known, jnp.zeros(4, bool))
  assert not np.any(drawn.gains)
