"""The reward of SMERL's skills, for one example.

Kumar et al., "One solution is not all you need: few-shot extrapolation via
structured MaxEnt RL", 2020, https://arxiv.org/abs/2010.14484.
"""

import chex
import jax
import jax.numpy as jnp


def smerl_reward(
  diversity_reward: jax.Array, skill_return: jax.Array,
  target_return: jax.Array, return_margin: jax.Array, weight: jax.Array,
) -> jax.Array:
  """Returns what SMERL adds to the reward of the task, section 4.

  weight * diversity_reward where the skill's return is at least
  target_return - return_margin, else 0; without a gradient.

  Args:
    diversity_reward: [], such as `diayn_reward`.
    skill_return: [], of the policy with the skill.
    target_return: [], of the best policy.
    return_margin: [], epsilon, at least 0.
    weight: [], alpha.

  Returns:
    [], the addition.
  """
  chex.assert_rank(
    [diversity_reward, skill_return, target_return, return_margin, weight], 0)
  is_near = skill_return >= target_return - return_margin
  return jax.lax.stop_gradient(
    jnp.where(is_near, weight * diversity_reward, 0.0))
