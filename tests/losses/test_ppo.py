"""Tests of PPO's losses and of its advantages."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from absl.testing import parameterized

from qdrl_haiku import losses

_E = np.e
# rho = e^0.5 = 1.65 or e^-1 = 0.37, of which 0.8 to 1.2 are within the clip.
_CASES = (
  ("gains", -0.5, 2.0, -2.0 * 1.2, 0.0),
  ("gains_from_below", -2.0, 2.0, -2.0 / _E, -2.0 / _E),
  ("loses", -0.5, -2.0, 2.0 * _E**0.5, 2.0 * _E**0.5),
  ("loses_from_below", -2.0, -2.0, 2.0 * 0.8, 0.0),
  ("same", -1.0, 3.0, -3.0, -3.0),
  ("much_likelier", 200.0, -2.0, 2.0 * _E**20, 0.0))


class PPOTest(chex.TestCase):
  @chex.all_variants
  @parameterized.named_parameters(*_CASES)
  def test_the_policys_loss_is_as_worked_by_hand(
    self, log_prob, advantage, expected, slope
  ):
    numbers = log_prob, -1.0, advantage, 0.2
    loss = self.variant(losses.ppo_policy_loss)(*numbers)
    np.testing.assert_allclose(loss, expected, rtol=1e-6)
    slopes = jax.grad(losses.ppo_policy_loss, (0, 1, 2))(*numbers)
    np.testing.assert_allclose(slopes, (slope, 0.0, 0.0), rtol=1e-6)

  @chex.all_variants
  def test_the_log_ratio_is_cut_above_alone(self):
    log_ratio = self.variant(losses.ppo_log_ratio)
    for own, expected in ((-3.0, -2.0), (200.0, 20.0), (-500.0, -499.0)):
      assert log_ratio(own, -1.0) == expected

  @chex.all_variants
  def test_the_critics_loss_is_as_worked_by_hand(self):
    numbers = jnp.float32(3.0), jnp.float32(1.0)
    assert self.variant(losses.ppo_critic_loss)(*numbers) == 2.0
    assert jax.grad(losses.ppo_critic_loss, (0, 1))(*numbers) == (2.0, 0.0)

  @chex.all_variants
  def test_advantages_are_as_worked_by_hand(self):
    """Three steps, of which the second one's episode was truncated.

    delta: 1 + 0.5*3 - 2 = 0.5, 1 + 0.5*8 - 3 = 2, 1 + 0.5*6 - 4 = 0; with
    lambda 0.5 the first gets a quarter of the second, which gets nothing of the
    third, of another episode, though that one's value is 4.
    """
    advantages = self.variant(losses.ppo_advantages)(
      r_t=jnp.ones(3), discount_t=jnp.full(3, 0.5),
      truncation_t=jnp.array([0.0, 1.0, 0.0]),
      v_tm1=jnp.array([2.0, 3.0, 4.0]), v_t=jnp.array([3.0, 8.0, 6.0]),
      lambda_=0.5)
    np.testing.assert_allclose(advantages, [1.0, 2.0, 0.0])


def test_numbers_of_another_rank_are_refused():
  with pytest.raises(AssertionError):
    losses.ppo_policy_loss(jnp.zeros(2), 0.0, 0.0, 0.2)
  with pytest.raises(AssertionError):
    losses.ppo_critic_loss(jnp.zeros(2), 0.0)
  with pytest.raises(AssertionError):
    losses.ppo_advantages(*[jnp.zeros((2, 3))] * 5, 0.9)
  with pytest.raises(AssertionError):
    losses.ppo_advantages(*[jnp.zeros(3)] * 5, jnp.zeros(3))
