"""Tests of the loss of deep Q-networks."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from absl.testing import parameterized

from qdrl_haiku import losses


class DQNTest(chex.TestCase):
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


def test_numbers_of_another_rank_are_refused():
  numbers = jnp.zeros(2), 1, 0.0, 0.9, jnp.zeros(2), jnp.zeros(2)
  for i, number in enumerate(numbers):
    more = jnp.asarray(number)[None]
    with pytest.raises(AssertionError):
      losses.dqn_loss(*numbers[:i], more, *numbers[i + 1:])
