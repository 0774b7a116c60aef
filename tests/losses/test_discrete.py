"""Tests of the losses of discrete actions' values."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from absl.testing import parameterized

from qdrl_haiku import losses

# pi = (3/4, 1/4); the smaller values are 2 and 1.
_LOGITS = jnp.log(jnp.array([6.0, 2.0]))
_Q = jnp.array([[2.0, 5.0], [4.0, 1.0]])
_ENTROPY = -(0.75 * np.log(0.75) + 0.25 * np.log(0.25))
_VALUE = 0.75 * 2 + 0.25 * 1 + 0.5 * _ENTROPY


class DiscreteTest(chex.TestCase):
  @chex.all_variants
  @parameterized.named_parameters(
    # The target is 1 + 0.5 * 4: what the target network says of the action
    # that the other one prefers. Half of the square; beyond 1 linear.
    ("near", 2.5, 0.125, -0.5), ("above", 3.25, 0.03125, 0.25),
    ("far", 1.0, 1.5, -1.0), ("far_above", 9.0, 5.5, 1.0))
  def test_dqns_loss_is_as_worked_by_hand(self, q, expected, slope):
    rest = 2, 1.0, 0.5, jnp.array([4.0, 9.0, 7.0]), jnp.array([3.0, 1.0, 2.0])
    q_tm1 = jnp.array([-5.0, 50.0, q])
    loss = self.variant(losses.dqn_loss)(q_tm1, *rest)
    np.testing.assert_allclose(loss, expected)
    slopes = jax.grad(losses.dqn_loss, (0, 4, 5))(q_tm1, *rest)
    np.testing.assert_allclose(
      jnp.stack(slopes), [[0, 0, slope], [0] * 3, [0] * 3])

  @chex.all_variants
  def test_a_termination_ends_the_value(self):
    seen = jnp.zeros(2), 1, 0.5, 0.0, jnp.full(2, 9.0), jnp.zeros(2)
    assert self.variant(losses.dqn_loss)(*seen) == 0.125
    loss = self.variant(losses.discrete_sac_critic_loss)(
      jnp.zeros((2, 2)), 1, 0.5, 0.0, _Q, _LOGITS, 0.5)
    assert loss == 0.25

  @chex.all_variants
  def test_the_soft_value_is_the_expectation_of_the_smaller_one(self):
    value = self.variant(losses.discrete_sac_value)(_Q, _LOGITS, 0.5)
    np.testing.assert_allclose(value, _VALUE, rtol=1e-6)
    loss = self.variant(losses.discrete_sac_policy_loss)(_Q, _LOGITS, 0.5)
    np.testing.assert_allclose(loss, -_VALUE, rtol=1e-6)
    slopes = jax.grad(losses.discrete_sac_policy_loss, (0, 1, 2))(
      _Q, _LOGITS, 0.5)
    # -pi_a (soft q_a - V).
    soft = np.array([2.0, 1.0]) - 0.5 * np.log([0.75, 0.25])
    np.testing.assert_allclose(
      slopes[1], -np.array([0.75, 0.25]) * (soft - _VALUE), rtol=1e-5)
    assert not np.any(slopes[0]) and slopes[2] == 0

  @chex.all_variants
  def test_soft_critics_err_of_the_action_taken(self):
    numbers = _Q + 1.0, 1, -0.25, 0.9, _Q, _LOGITS, 0.5
    loss = self.variant(losses.discrete_sac_critic_loss)(*numbers)
    errors = np.array([5.0, 2.0]) + 0.25 - 0.9 * _VALUE
    np.testing.assert_allclose(loss, 0.5 * np.sum(errors**2), rtol=1e-6)
    slopes = jax.grad(losses.discrete_sac_critic_loss, (0, 4, 5, 6))(*numbers)
    np.testing.assert_allclose(slopes[0], [[0, 0], errors], rtol=1e-6)
    assert not any(np.any(x) for x in slopes[1:])


def test_numbers_of_another_rank_are_refused():
  with pytest.raises(AssertionError):
    losses.dqn_loss(_Q, 1, 0.0, 0.9, _LOGITS, _LOGITS)
  with pytest.raises(AssertionError):
    losses.discrete_sac_value(_Q[0], _LOGITS, 0.5)
  with pytest.raises(AssertionError):
    losses.discrete_sac_critic_loss(
      _Q, 1, jnp.zeros(2), 0.9, _Q, _LOGITS, 0.5)
