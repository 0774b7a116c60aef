"""Losses: arrays in, one number out, for one example; batch with `jax.vmap`.

Names end in _tm1 and _t as in rlax: the reward and the discount of step t
follow the observation and action of step t - 1. An argument of another rank
raises an AssertionError.
"""

from qdrl_haiku.losses.categorical import (
  categorical_value,
  two_hot,
  xqc_critic_loss,
)
from qdrl_haiku.losses.dads import (
  dads_dynamics_loss,
  dads_log_prob,
  dads_reward,
)
from qdrl_haiku.losses.diayn import (
  diayn_discriminator_loss,
  diayn_normal_discriminator_loss,
  diayn_normal_reward,
  diayn_reward,
  diayn_sphere_discriminator_loss,
  diayn_sphere_reward,
)
from qdrl_haiku.losses.dqn import dqn_loss
from qdrl_haiku.losses.metra import (
  metra_multiplier_loss,
  metra_representation_loss,
  metra_reward,
  metra_slack,
)
from qdrl_haiku.losses.ppo import (
  ppo_advantages,
  ppo_critic_loss,
  ppo_log_ratio,
  ppo_policy_loss,
)
from qdrl_haiku.losses.sac import (
  sac_critic_loss,
  sac_policy_loss,
  sac_temperature_loss,
)
from qdrl_haiku.losses.smerl import smerl_reward
from qdrl_haiku.losses.td3 import (
  td3_critic_loss,
  td3_policy_loss,
  td3_target_action,
)
