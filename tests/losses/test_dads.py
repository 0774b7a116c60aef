"""Tests of DADS's losses and its reward, and of SMERL's."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special, stats

from qdrl_haiku import losses

_M, _G = 3, 2


def _draws(*shapes):
  rng = np.random.default_rng(0)
  return [rng.normal(size=shape).astype(np.float32) for shape in shapes]


def test_the_log_density_is_that_of_scipys_mixture_of_gaussians():
  logits, locations, difference = _draws((16, _M), (16, _M, _G), (16, _G))
  found = jax.vmap(losses.dads_log_prob)(logits, locations, 3 * difference)
  for n in range(16):
    weights = special.softmax(np.float64(logits[n]))
    densities = [
      stats.multivariate_normal.pdf(3 * difference[n], mean=location)
      for location in np.float64(locations[n])]
    np.testing.assert_allclose(
      found[n], np.log(weights @ densities), rtol=1e-4, atol=1e-5)
  loss = jax.vmap(losses.dads_dynamics_loss)(logits, locations, 3 * difference)
  np.testing.assert_array_equal(loss, -found)


def test_a_step_far_from_all_components_has_a_finite_log_density():
  found = losses.dads_log_prob(
    jnp.zeros(_M), jnp.zeros((_M, _G)), jnp.full(_G, 1e3))
  np.testing.assert_allclose(found, -1e6 - np.log(2 * np.pi), rtol=1e-6)


def test_the_reward_is_the_density_over_its_mean_for_other_skills():
  own, others = _draws((), (5,))
  found = losses.dads_reward(own, others)
  expected = np.float64(own) - np.log(np.mean(np.exp(np.float64(others))))
  np.testing.assert_allclose(found, expected, rtol=1e-5)
  # Where all skills predict a step alike, none is told.
  assert losses.dads_reward(jnp.float32(2), jnp.full(4, 2.0)) == 0
  slopes = jax.grad(losses.dads_reward, (0, 1))(own, others)
  assert not any(np.any(x) for x in slopes)


@pytest.mark.parametrize(("skill_return", "expected"), [
  (9.0, 1.5), (8.0, 1.5), (7.9, 0.0), (-3e38, 0.0), (20.0, 1.5),
])
def test_smerls_bonus_is_zero_below_the_threshold(skill_return, expected):
  args = map(jnp.float32, (3.0, skill_return, 10.0, 2.0, 0.5))
  assert losses.smerl_reward(*args) == expected
