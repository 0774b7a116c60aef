"""The losses of soft actor-critic, for one example.

Haarnoja et al., "Soft actor-critic algorithms and applications", 2018,
https://arxiv.org/abs/1812.05905. There may be any number of critics; SAC has
two. Log-probabilities are in nats. Every number may be traced, the temperature
included.
"""

import chex
import jax
import jax.numpy as jnp
import rlax


def sac_critic_loss(
  q_tm1: jax.Array, r_t: jax.Array, discount_t: jax.Array, q_t: jax.Array,
  log_prob_t: jax.Array, temperature: jax.Array,
) -> jax.Array:
  """Returns the soft Bellman error of the critics, eq. 5.

  sum_i 0.5 (q_tm1[i] - y)^2,
  y = r_t + discount_t (min_i q_t[i] - temperature log_prob_t).

  The gradient goes to `q_tm1` only: y is a constant.

  Args:
    q_tm1: [num_critics], the critics' values of the action taken.
    r_t: [], the reward.
    discount_t: [], in [0, 1]: the discount, 0 after a termination.
    q_t: [num_critics], the target critics' values of an action drawn from the
      policy at the next observation.
    log_prob_t: [], the log-probability of that action.
    temperature: [], >= 0: the weight of the entropy.

  Returns:
    [], the loss.
  """
  chex.assert_rank(
    [q_tm1, r_t, discount_t, q_t, log_prob_t, temperature], [1, 0, 0, 1, 0, 0])
  v_t = jnp.min(q_t) - temperature * log_prob_t
  td_errors = jax.vmap(rlax.td_learning, in_axes=(0, None, None, None))(
    q_tm1, r_t, discount_t, v_t)
  return jnp.sum(rlax.l2_loss(td_errors))


def sac_policy_loss(
  q_t: jax.Array, log_prob: jax.Array, temperature: jax.Array
) -> jax.Array:
  """Returns the soft policy loss, eq. 9.

  temperature log_prob - min_i q_t[i].

  The gradient goes to `log_prob` and, through the smallest value, to `q_t`, and
  from both to the reparameterised action; none goes to `temperature`. The
  caller differentiates by the policy's parameters only: the critics stay fixed.

  Args:
    q_t: [num_critics], the critics' values of an action drawn from the policy.
    log_prob: [], the log-probability of that action.
    temperature: [], >= 0: the weight of the entropy.

  Returns:
    [], the loss.
  """
  chex.assert_rank([q_t, log_prob, temperature], [1, 0, 0])
  return jax.lax.stop_gradient(temperature) * log_prob - jnp.min(q_t)


def sac_temperature_loss(
  log_temperature: jax.Array, log_prob: jax.Array, target_entropy: jax.Array
) -> jax.Array:
  """Returns the loss that holds the policy's entropy at its target, eq. 18.

  -exp(log_temperature) (log_prob + target_entropy).

  The gradient goes to `log_temperature` only.

  Args:
    log_temperature: [], the logarithm of the temperature.
    log_prob: [], the log-probability of an action drawn from the policy.
    target_entropy: [], in nats; -A is customary, -A / 2 our default.

  Returns:
    [], the loss.
  """
  chex.assert_rank([log_temperature, log_prob, target_entropy], 0)
  excess = jax.lax.stop_gradient(log_prob + target_entropy)
  return -jnp.exp(log_temperature) * excess
