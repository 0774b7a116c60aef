"""Tests of PPO's losses and of its advantages."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from absl.testing import parameterized

from qdrl_haiku import losses
from tests.learners import reference

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


@pytest.mark.parametrize("lambda_", [0.0, 0.9, 1.0])
def test_advantages_are_those_of_numpy_with_episodes_ending_in_between(lambda_):
  rng, size = np.random.default_rng(0), 40
  ends = rng.choice(["no", "terminated", "truncated"], size, p=(0.7, 0.1, 0.2))
  values, next_values = rng.normal(size=(2, size))
  goes_on = np.flatnonzero(ends[:-1] == "no")
  next_values[goes_on] = values[goes_on + 1]
  numbers = (
    rng.normal(size=size), 0.95 * (ends != "terminated"), ends == "truncated",
    values, next_values)
  assert {*ends} == {"no", "terminated", "truncated"}
  found = losses.ppo_advantages(*map(jnp.float32, numbers), lambda_)
  expected = reference.advantages(*numbers, lambda_)
  np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
  if lambda_ == 1:
    # The targets are then plain returns: of the last episode, bootstrapped.
    last = np.flatnonzero(ends[:-1] != "no")[-1] + 1
    weights = np.cumprod([1.0, *numbers[1][last:]])
    rest = np.sum(weights * [*numbers[0][last:], next_values[-1]])
    np.testing.assert_allclose(found[last] + values[last], rest, rtol=1e-4)


def test_numbers_of_another_rank_are_refused():
  with pytest.raises(AssertionError):
    losses.ppo_policy_loss(jnp.zeros(2), 0.0, 0.0, 0.2)
  with pytest.raises(AssertionError):
    losses.ppo_critic_loss(jnp.zeros(2), 0.0)
  with pytest.raises(AssertionError):
    losses.ppo_advantages(*[jnp.zeros((2, 3))] * 5, 0.9)
  with pytest.raises(AssertionError):
    losses.ppo_advantages(*[jnp.zeros(3)] * 5, jnp.zeros(3))
