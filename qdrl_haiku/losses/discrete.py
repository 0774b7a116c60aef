"""Losses of values of discrete actions, for one example.

The actions are one of n. Every number may be traced.
"""

import chex
import jax
import jax.numpy as jnp
import rlax


def dqn_loss(
  q_tm1: jax.Array, a_tm1: jax.Array, r_t: jax.Array, discount_t: jax.Array,
  q_t: jax.Array, selector_t: jax.Array,
) -> jax.Array:
  """Returns the Huber loss of double Q-learning's error.

  h(r_t + discount_t q_t[argmax selector_t] - q_tm1[a_tm1]), where h(x) is
  0.5 x^2 up to |x| = 1, and |x| - 0.5 beyond: van Hasselt et al., "Deep
  reinforcement learning with double Q-learning", 2016,
  https://arxiv.org/abs/1509.06461.

  The gradient goes to `q_tm1` only.

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


def discrete_sac_value(
  q_t: jax.Array, logits_t: jax.Array, temperature: jax.Array
) -> jax.Array:
  """Returns the soft value of an observation, eq. 10.

  sum_a pi(a) (min_i q_t[a, i] - temperature log pi(a)), pi = softmax(logits_t):
  Christodoulou, "Soft actor-critic for discrete action settings", 2019,
  https://arxiv.org/abs/1910.07207.

  Args:
    q_t: [n, num_critics], the critics' values of the actions.
    logits_t: [n], the policy's.
    temperature: [], >= 0: the weight of the entropy.

  Returns:
    [], the value.
  """
  chex.assert_rank([q_t, logits_t, temperature], [2, 1, 0])
  log_probs = jax.nn.log_softmax(logits_t)
  soft_q = jnp.min(q_t, axis=-1) - temperature * log_probs
  return jnp.sum(jnp.exp(log_probs) * soft_q)


def discrete_sac_critic_loss(
  q_tm1: jax.Array, a_tm1: jax.Array, r_t: jax.Array, discount_t: jax.Array,
  q_t: jax.Array, logits_t: jax.Array, temperature: jax.Array,
) -> jax.Array:
  """Returns the soft Bellman error of the critics.

  sum_i 0.5 (q_tm1[a_tm1, i] - r_t - discount_t `discrete_sac_value`)^2, with a
  gradient to `q_tm1` only.

  Args:
    q_tm1: [n, num_critics], the critics' values of the actions.
    a_tm1: int32 [], the action taken.
    r_t: [], the reward.
    discount_t: [], in [0, 1]: the discount, 0 after a termination.
    q_t: [n, num_critics], the target critics' values at the next observation.
    logits_t: [n], the policy's there.
    temperature: [], >= 0: the weight of the entropy.

  Returns:
    [], the loss.
  """
  chex.assert_rank([q_tm1, a_tm1, r_t, discount_t], [2, 0, 0, 0])
  v_t = discrete_sac_value(q_t, logits_t, temperature)
  td_errors = jax.vmap(rlax.td_learning, in_axes=(0, None, None, None))(
    q_tm1[a_tm1], r_t, discount_t, v_t)
  return jnp.sum(rlax.l2_loss(td_errors))


def discrete_sac_policy_loss(
  q_t: jax.Array, logits_t: jax.Array, temperature: jax.Array
) -> jax.Array:
  """Returns -`discrete_sac_value`, with a gradient to the logits only."""
  q_t, temperature = jax.lax.stop_gradient((q_t, temperature))
  return -discrete_sac_value(q_t, logits_t, temperature)
