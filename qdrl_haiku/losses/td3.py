"""The losses of TD3, and its smoothed target action, for one example.

Fujimoto et al., "Addressing function approximation error in actor-critic
methods", 2018, https://arxiv.org/abs/1802.09477. There may be any number of
critics; TD3 has two. Every number may be traced, the scale and the clip of the
noise included.
"""

import chex
import jax
import jax.numpy as jnp
import rlax

from qdrl_haiku import platform, types


def td3_critic_loss(
  q_tm1: jax.Array, r_t: jax.Array, discount_t: jax.Array, q_t: jax.Array
) -> jax.Array:
  """Returns the clipped double Q-learning loss, algorithm 1.

  sum_i 0.5 (q_tm1[i] - y)^2,  y = r_t + discount_t min_i q_t[i].

  The gradient goes to `q_tm1` only: y is a constant.

  Args:
    q_tm1: [num_critics], the critics' values of the action taken.
    r_t: [], the reward.
    discount_t: [], in [0, 1]: the discount, 0 after a termination.
    q_t: [num_critics], the target critics' values of `td3_target_action` at
      the next observation.

  Returns:
    [], the loss.
  """
  chex.assert_rank([q_tm1, r_t, discount_t, q_t], [1, 0, 0, 1])
  td_errors = jax.vmap(rlax.td_learning, in_axes=(0, None, None, None))(
    q_tm1, r_t, discount_t, jnp.min(q_t))
  return jnp.sum(rlax.l2_loss(td_errors))


def td3_policy_loss(q_t: jax.Array) -> jax.Array:
  """Returns the deterministic policy gradient's loss, -q_t[0], algorithm 1.

  The gradient goes to the first critic's value, and through it to the action.
  The caller differentiates by the policy's parameters only: the critics stay
  fixed.

  Args:
    q_t: [num_critics], the critics' values of the policy's action.

  Returns:
    [], the loss.
  """
  chex.assert_rank(q_t, 1)
  return -q_t[0]


def td3_target_action(
  key: types.Key, action: jax.Array, noise_scale: jax.Array,
  noise_clip: jax.Array,
) -> jax.Array:
  """Returns the smoothed actions that the target critics judge, section 5.3.

  clip(action + clip(N(0, noise_scale^2), -noise_clip, noise_clip), -1, 1).

  The actions are part of a target, so no gradient flows through them. Unlike
  the losses, this takes a whole batch, and draws all noise with one key.

  Args:
    key: consumed.
    action: [..., A], in [-1, 1]: the target policy's actions.
    noise_scale: [], >= 0: the noise's standard deviation, in action units.
    noise_clip: [], >= 0: the largest noise, in action units.

  Returns:
    [..., A], in [-1, 1].
  """
  chex.assert_rank([noise_scale, noise_clip], 0)
  chex.assert_axis_dimension_gt(action, -1, 0)
  change = noise_scale * platform.normal_noise(key, action.shape, action.dtype)
  change = jnp.clip(change, -noise_clip, noise_clip)
  return jax.lax.stop_gradient(jnp.clip(action + change, -1.0, 1.0))
