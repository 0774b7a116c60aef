"""Tests of the losses and rewards of DADS, SMERL and METRA."""

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
  (9.0, 1.5), (8.0, 1.5), (7.9, 0.0), (-3e38, 0.0), (20.0, 1.5)])
def test_smerls_bonus_is_zero_below_the_threshold(skill_return, expected):
  args = map(jnp.float32, (3.0, skill_return, 10.0, 2.0, 0.5))
  assert losses.smerl_reward(*args) == expected


def test_the_rewards_of_an_episode_sum_up_to_how_far_it_went():
  phi, skill = _draws((101, 3), (3,))
  rewards = jax.vmap(losses.metra_reward, (0, 0, None))(
    phi[:-1], phi[1:], skill)
  expected = (phi[-1] - phi[0]).astype(np.float64) @ skill
  np.testing.assert_allclose(rewards.sum(), expected, atol=1e-4)
  slopes = jax.grad(losses.metra_reward, (0, 1, 2))(phi[0], phi[1], skill)
  assert not any(np.any(x) for x in slopes)


@pytest.mark.parametrize(
  ("moved", "expected"), [(0.0, 0.25), (0.8, 0.25), (1.0, 0.0), (2.0, -3.0)])
def test_a_step_has_room_up_to_the_slack(moved, expected):
  phi = jnp.array([1.0, -2.0])
  next_phi = phi + jnp.array([0.6, 0.8]) * moved
  room = losses.metra_slack(phi, next_phi, jnp.float32(0.25))
  np.testing.assert_allclose(room, expected, atol=1e-5)


def test_the_representations_loss_is_its_formula_in_float64():
  phi, next_phi, skill = _draws((64, 2), (64, 2), (64, 2))
  next_phi = phi + 0.7 * next_phi  # Steps on both sides of 1.
  multiplier, slack = np.float32(3.0), np.float32(0.01)
  loss = jax.vmap(losses.metra_representation_loss, (0, 0, 0, None, None))(
    phi, next_phi, skill, multiplier, slack)
  moved = np.float64(next_phi) - np.float64(phi)
  room = np.minimum(slack, 1 - np.sum(moved**2, axis=1))
  assert 0 < np.mean(room < 0) < 1
  expected = -(np.sum(moved * skill, axis=1) + multiplier * room)
  np.testing.assert_allclose(loss, expected, rtol=1e-4, atol=1e-5)
  slope = jax.grad(losses.metra_representation_loss, 3)(
    phi[0], next_phi[0], skill[0], multiplier, slack)
  assert slope == 0


def test_the_multiplier_grows_where_steps_are_too_far_and_falls_elsewhere():
  slope = jax.grad(losses.metra_multiplier_loss, (0, 1))
  assert slope(jnp.float32(2.0), jnp.float32(-3.0)) == (-3.0, 0.0)
  assert slope(jnp.float32(2.0), jnp.float32(0.5)) == (0.5, 0.0)


@pytest.mark.parametrize("changed", [
  {"skill": jnp.zeros((2, 2))}, {"multiplier": jnp.zeros(3)}], ids=str)
def test_numbers_of_another_rank_are_refused(changed):
  numbers = {
    "phi": jnp.zeros(2), "next_phi": jnp.zeros(2), "skill": jnp.zeros(2),
    "multiplier": 1.0, "slack": 1e-3}
  losses.metra_representation_loss(**numbers)
  with pytest.raises(AssertionError):
    losses.metra_representation_loss(**numbers | changed)
