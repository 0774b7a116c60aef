"""PPO's losses of one example, and the advantages of an environment's steps.

Schulman et al., "Proximal policy optimization algorithms", 2017,
https://arxiv.org/abs/1707.06347. Every number may be traced.
"""

import chex
import jax
import jax.numpy as jnp
import rlax

# Far beyond any clip_epsilon; e^89 overflows float32.
_LARGEST_LOG_RATIO = 20.0


def ppo_log_ratio(
  log_prob: jax.Array, behaviour_log_prob: jax.Array
) -> jax.Array:
  """Returns log rho, cut to at most 20 so that rho is finite.

  Args:
    log_prob: [], of the action taken, by the policy that learns.
    behaviour_log_prob: [], of that action by the policy that acted; no
      gradient.

  Returns:
    [], min(log_prob - behaviour_log_prob, 20).
  """
  chex.assert_rank([log_prob, behaviour_log_prob], 0)
  log_ratio = log_prob - jax.lax.stop_gradient(behaviour_log_prob)
  return jnp.minimum(log_ratio, _LARGEST_LOG_RATIO)


def ppo_policy_loss(
  log_prob: jax.Array, behaviour_log_prob: jax.Array, advantage: jax.Array,
  clip_epsilon: jax.Array,
) -> jax.Array:
  """Returns the clipped surrogate loss, equation 7.

  -min(rho advantage, clip(rho, 1 - clip_epsilon, 1 + clip_epsilon) advantage),
  rho = exp(`ppo_log_ratio`).

  The gradient goes to `log_prob` only.

  Args:
    log_prob: [], see `ppo_log_ratio`.
    behaviour_log_prob: [], see `ppo_log_ratio`.
    advantage: [], of that action, see `ppo_advantages`.
    clip_epsilon: [], >= 0.

  Returns:
    [], the loss.
  """
  chex.assert_rank([log_prob, behaviour_log_prob, advantage, clip_epsilon], 0)
  ratio = jnp.exp(ppo_log_ratio(log_prob, behaviour_log_prob))
  return rlax.clipped_surrogate_pg_loss(
    ratio[None], jnp.asarray(advantage)[None], clip_epsilon)


def ppo_critic_loss(v_tm1: jax.Array, target: jax.Array) -> jax.Array:
  """Returns 0.5 (v_tm1 - target)^2, without a gradient to the target.

  Args:
    v_tm1: [], the critic's value of an observation.
    target: [], the critic's value at collection plus the advantage.

  Returns:
    [], the loss.
  """
  chex.assert_rank([v_tm1, target], 0)
  return rlax.l2_loss(v_tm1 - jax.lax.stop_gradient(target))


def ppo_advantages(
  r_t: jax.Array, discount_t: jax.Array, truncation_t: jax.Array,
  v_tm1: jax.Array, v_t: jax.Array, lambda_: jax.Array,
) -> jax.Array:
  """Returns truncated generalised advantages of steps in one environment.

  Schulman et al., arXiv 1506.02438, equation 16. Where an episode was truncated
  its return goes on with the value of the true next observation, and no
  advantage flows back over its end.

  Args:
    r_t: [T], rewards.
    discount_t: [T], in [0, 1]: discounts, 0 after a termination.
    truncation_t: [T], 1 where an episode was truncated, else 0.
    v_tm1: [T], the critic's values of the observations.
    v_t: [T], those of the true next observations.
    lambda_: [], in [0, 1]: how much later values count.

  Returns:
    [T], the advantages; with `v_tm1` the critic's targets.
  """
  chex.assert_rank(
    [r_t, discount_t, truncation_t, v_tm1, v_t, lambda_], [1, 1, 1, 1, 1, 0])
  # After a truncation the rollout goes on with another episode: so the value of
  # the true next observation is added to the reward, and the discount is 0.
  r_t = r_t + discount_t * truncation_t * v_t
  discount_t = discount_t * (1 - truncation_t)
  values = jnp.concatenate([v_tm1, v_t[-1:]])
  return rlax.truncated_generalized_advantage_estimation(
    r_t, discount_t, lambda_, values)
