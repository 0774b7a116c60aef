"""The loss of deep Q-networks, for one example.

van Hasselt et al., "Deep reinforcement learning with double Q-learning", 2016,
https://arxiv.org/abs/1509.06461. Every number may be traced.
"""

import jax
import rlax


def dqn_loss(
  q_tm1: jax.Array, a_tm1: jax.Array, r_t: jax.Array, discount_t: jax.Array,
  q_t: jax.Array, selector_t: jax.Array,
) -> jax.Array:
  """Returns the Huber loss of double Q-learning's error.

  h(r_t + discount_t q_t[argmax selector_t] - q_tm1[a_tm1]), where h(x) is
  0.5 x^2 up to |x| = 1, and |x| - 0.5 beyond. The gradient goes to `q_tm1`
  only.

  Args:
    q_tm1: [n], the values of the actions.
    a_tm1: int32 [], the action taken.
    r_t: [], the reward.
    discount_t: [], in [0, 1]: the discount, 0 after a termination.
    q_t: [n], the target network's values of the actions at the next
      observation.
    selector_t: [n], those of the network that learns.

  Returns:
    [], the loss.
  """
  return rlax.huber_loss(rlax.double_q_learning(
    q_tm1, a_tm1, r_t, discount_t, q_t, jax.lax.stop_gradient(selector_t)))
