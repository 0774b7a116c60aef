"""Losses of critics that hold distributions over atoms, for one example.

Palenicek et al., "XQC: well-conditioned optimization accelerates deep
reinforcement learning", 2025, https://arxiv.org/abs/2509.25174; its targets
here are two-hot, as in Farebrother et al., "Stop regressing: training value
functions via classification for scalable deep RL", 2024,
https://arxiv.org/abs/2403.03950, section 3.1.
"""

import chex
import jax
import jax.numpy as jnp


def two_hot(value: jax.Array, atoms: jax.Array) -> jax.Array:
  """Returns a distribution over atoms whose mean is the value.

  The two atoms beside the value share the probability, the nearer one has more;
  a value beyond the outermost atoms is clipped to them.

  Args:
    value: [].
    atoms: [K], evenly spaced, in ascending order.

  Returns:
    [K], the probabilities.
  """
  chex.assert_rank([value, atoms], [0, 1])
  spacing = (atoms[-1] - atoms[0]) / (atoms.shape[0] - 1)
  value = jnp.clip(value, atoms[0], atoms[-1])
  return jnp.maximum(1.0 - jnp.abs(value - atoms) / spacing, 0.0)


def categorical_value(logits: jax.Array, atoms: jax.Array) -> jax.Array:
  """Returns the mean of a distribution over atoms.

  Args:
    logits: [K].
    atoms: [K], the values.

  Returns:
    [], the mean.
  """
  chex.assert_rank([logits, atoms], 1)
  return jnp.sum(jax.nn.softmax(logits) * atoms)


def xqc_critic_loss(
  logits_tm1: jax.Array, r_t: jax.Array, discount_t: jax.Array, q_t: jax.Array,
  log_prob_t: jax.Array, temperature: jax.Array, atoms: jax.Array,
) -> jax.Array:
  """Returns the cross-entropy of the critics to the soft target, eq. 3.

  -sum_i sum_k two_hot(y)[k] log softmax(logits_tm1[i])[k],
  y = r_t + discount_t (min_i q_t[i] - temperature log_prob_t).

  The gradient goes to `logits_tm1` only: y and the atoms are constants. The
  paper projects the smallest critic's whole distribution; y uses its mean only.

  Args:
    logits_tm1: [num_critics, K], the critics' logits for the action taken.
    r_t: [], the reward.
    discount_t: [], in [0, 1]: the discount, 0 after a termination.
    q_t: [num_critics], the target critics' values of an action drawn from the
      policy at the next observation.
    log_prob_t: [], the log-probability of that action.
    temperature: [], >= 0: the weight of the entropy.
    atoms: [K], the values of the atoms, evenly spaced, ascending.

  Returns:
    [], the loss.
  """
  chex.assert_rank(
    [logits_tm1, r_t, discount_t, q_t, log_prob_t, temperature, atoms],
    [2, 0, 0, 1, 0, 0, 1])
  target = r_t + discount_t * (jnp.min(q_t) - temperature * log_prob_t)
  labels = jax.lax.stop_gradient(two_hot(target, atoms))
  return -jnp.sum(labels * jax.nn.log_softmax(logits_tm1))
