"""Tests of METRA's losses and its reward."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qdrl_haiku import losses
from tests.losses.test_dads import _draws


def test_the_rewards_of_an_episode_sum_up_to_how_far_it_went():
  phi, skill = _draws((101, 3), (3,))
  rewards = jax.vmap(losses.metra_reward, (0, 0, None))(
    phi[:-1], phi[1:], skill
  )
  expected = (phi[-1] - phi[0]).astype(np.float64) @ skill
  np.testing.assert_allclose(rewards.sum(), expected, atol=1e-4)
  slopes = jax.grad(losses.metra_reward, (0, 1, 2))(phi[0], phi[1], skill)
  assert not any(np.any(x) for x in slopes)


@pytest.mark.parametrize(
  ("moved", "expected"), [(0.0, 0.25), (0.8, 0.25), (1.0, 0.0), (2.0, -3.0)]
)
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
    phi, next_phi, skill, multiplier, slack
  )
  moved = np.float64(next_phi) - np.float64(phi)
  room = np.minimum(slack, 1 - np.sum(moved**2, axis=1))
  assert 0 < np.mean(room < 0) < 1
  expected = -(np.sum(moved * skill, axis=1) + multiplier * room)
  np.testing.assert_allclose(loss, expected, rtol=1e-4, atol=1e-5)
  slope = jax.grad(losses.metra_representation_loss, 3)(
    phi[0], next_phi[0], skill[0], multiplier, slack
  )
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
