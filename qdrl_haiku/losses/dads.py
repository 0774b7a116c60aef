"""The losses of DADS and the reward of its skills, for one example.

Sharma et al., "Dynamics-aware unsupervised discovery of skills", 2019,
https://arxiv.org/abs/1907.01657. Skill dynamics q(s' - s | s, z), a mixture of
Gaussians of standard deviation 1 over normalised differences, learn by maximum
likelihood; the agent is rewarded for going where one skill alone is predicted
to lead.
"""

import math

import chex
import jax
import jax.numpy as jnp


def dads_log_prob(
  logits: jax.Array, locations: jax.Array, difference: jax.Array
) -> jax.Array:
  """Returns the log-density of a step by skill dynamics, in nats.

  log sum_m softmax(logits)[m] N(difference; locations[m], 1), section 4.2.

  Args:
    logits: [M], of the components' weights.
    locations: [M, G], the components' means.
    difference: [G], s' - s of the step, normalised.

  Returns:
    [], log q(s' - s | s, z).
  """
  chex.assert_rank([logits, locations, difference], [1, 2, 1])
  distance = jnp.sum(jnp.square(difference - locations), axis=-1)
  log_normaliser = 0.5 * difference.size * math.log(2 * math.pi)
  log_prob = jax.nn.log_softmax(logits) - 0.5 * distance - log_normaliser
  return jax.nn.logsumexp(log_prob)


def dads_dynamics_loss(
  logits: jax.Array, locations: jax.Array, difference: jax.Array
) -> jax.Array:
  """Returns the loss of skill dynamics, -`dads_log_prob`; eq. 4.

  Args and errors are those of `dads_log_prob`.
  """
  return -dads_log_prob(logits, locations, difference)


def dads_reward(log_prob: jax.Array, other_log_probs: jax.Array) -> jax.Array:
  """Returns the reward of a step for a skill, eq. 6.

  log q(s' - s | s, z) - log (1/L sum_i q(s' - s | s, z_i)), without a gradient.

  Args:
    log_prob: [], `dads_log_prob` of the step for its skill.
    other_log_probs: [L], the same for L skills of the prior.

  Returns:
    [], the reward.
  """
  chex.assert_rank([log_prob, other_log_probs], [0, 1])
  log_mean = jax.nn.logsumexp(other_log_probs) - math.log(other_log_probs.size)
  return jax.lax.stop_gradient(log_prob - log_mean)
