"""The losses of METRA and the reward of its skills, for one example.

Park, Rybkin and Levine, "METRA: scalable unsupervised RL with metric-aware
abstraction", 2023, https://arxiv.org/abs/2310.08887. A representation phi maps
states to the space of skills, and no step may move it by more than 1, so that
distances there are numbers of steps; skills are directions in it.
"""

import chex
import jax
import jax.numpy as jnp


def metra_reward(
  phi: jax.Array, next_phi: jax.Array, skill: jax.Array
) -> jax.Array:
  """Returns the reward of a step for a skill, eq. 7.

  (phi(s') - phi(s)) . z, without a gradient. Over an episode the rewards sum up
  to (phi(s_T) - phi(s_0)) . z.

  Args:
    phi: [K], the representation of the state.
    next_phi: [K], that of the next one.
    skill: [K], z.

  Returns:
    [], the reward.
  """
  chex.assert_rank([phi, next_phi, skill], 1)
  chex.assert_equal_shape([phi, next_phi, skill])
  return jax.lax.stop_gradient(jnp.dot(next_phi - phi, skill))


def metra_slack(
  phi: jax.Array, next_phi: jax.Array, slack: jax.Array
) -> jax.Array:
  """Returns the slack of a step in the constraint |phi(s') - phi(s)| <= 1.

  min(slack, 1 - |phi(s') - phi(s)|^2), negative if violated; section 4.2. The
  authors' code takes the mean of the K squares here, not their sum.

  Args:
    phi: [K], the representation of the state.
    next_phi: [K], that of the next one.
    slack: [], epsilon >= 0, the largest slack that counts.

  Returns:
    [], at most `slack`.
  """
  chex.assert_rank([phi, next_phi, slack], [1, 1, 0])
  return jnp.minimum(slack, 1.0 - jnp.sum(jnp.square(next_phi - phi)))


def metra_representation_loss(
  phi: jax.Array, next_phi: jax.Array, skill: jax.Array, multiplier: jax.Array,
  slack: jax.Array,
) -> jax.Array:
  """Returns the loss of the representation, eq. 10.

  -((phi(s') - phi(s)) . z + lambda * `metra_slack`).

  Args:
    phi: [K], the representation of the state.
    next_phi: [K], that of the next one.
    skill: [K], z.
    multiplier: [], lambda, at least 0; no gradient.
    slack: [], see `metra_slack`.

  Returns:
    [], the loss.
  """
  chex.assert_rank(
    [phi, next_phi, skill, multiplier, slack], [1, 1, 1, 0, 0])
  multiplier = jax.lax.stop_gradient(multiplier)
  gain = jnp.dot(next_phi - phi, skill)
  return -(gain + multiplier * metra_slack(phi, next_phi, slack))


def metra_multiplier_loss(
  log_multiplier: jax.Array, slack: jax.Array
) -> jax.Array:
  """Returns the loss of log lambda, lambda being the dual variable.

  log lambda * `metra_slack`, as in the authors' code; the gradient goes to log
  lambda only. Lambda grows if the constraint is violated, and else falls.

  Args:
    log_multiplier: [], log lambda.
    slack: [], `metra_slack` of a step, or its mean over a batch.

  Returns:
    [], the loss.
  """
  chex.assert_rank([log_multiplier, slack], 0)
  return log_multiplier * jax.lax.stop_gradient(slack)
