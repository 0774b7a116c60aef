"""CrossQ: batch normalisation in the place of target networks.

Bhatt et al., arXiv 1902.05605.
"""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp

from qdrl_haiku import losses, specs, types
from qdrl_haiku import networks as networks_lib
from qdrl_haiku.learners import (
  base,
  hyperparameters,
  soft_policy,
  statistics,
)
from qdrl_haiku.learners.config import DelayedSoftAgentConfig
from qdrl_haiku.learners.with_batch_norm import batch_norm
from qdrl_haiku.learners.with_memory.remembering import remembering

# Of Adam, in section 4 and table 2 of the paper.
_B1 = 0.5


@dataclasses.dataclass(frozen=True)
class CrossQConfig(DelayedSoftAgentConfig):
  """Shapes CrossQ's networks and its computation."""

  hyperparameters = {
    **hyperparameters.common_hyperparameters_without("tau", "weight_decay"),
    # With 0.995 it stands on hopper and walker2d, and falls on the ant, see
    # launchers/RESULTS.md.
    "discount": hyperparameters.declare_discount(0.99)}


class CrossQState(NamedTuple):
  """One CrossQ agent: that of SAC without target critics, see `SACState`."""

  policy_params: types.Params
  critic_params: types.Params
  # Averages of the statistics of the batches that the critics have learned
  # from, leaves [2, ...].
  critic_state: types.State
  log_temperature: types.Array
  policy_optimizer_state: types.State
  critic_optimizer_state: types.State
  temperature_optimizer_state: types.State | None
  observation_statistics: statistics.ObservationStatistics | None


class CrossQGenotype(NamedTuple):
  """Holds what a repertoire stores of a CrossQ agent; see `CrossQState`."""

  policy_params: types.Params
  critic_params: types.Params
  critic_state: types.State
  log_temperature: types.Array
  observation_statistics: statistics.ObservationStatistics | None


@remembering
def crossq(
  observation_size: int | specs.Observation, action_size: int | specs.Action,
  config: CrossQConfig = CrossQConfig(),
  networks: networks_lib.OwnNetworks | None = None,
) -> base.Learner:
  """Makes CrossQ: SAC without target networks, with normalised networks.

  The batch and the target's batch (next observations, and the policy's actions
  there) go through the critics together, so that both are normalised by the
  same statistics. Each update is `policy_delay` such critic steps, a batch
  each, then one step of the policy and of the temperature on the last batch.
  In the policy step the critics are normalised by their running averages, and
  the policy by the batch. When it acts, also for the targets, the policy uses
  running averages of its own. Only updates move the averages.

  Its hyperparameters are `config.declared`. Args and errors are those of `sac`.

  Returns:
    The learner; its state is a `CrossQState`, its genotype a `CrossQGenotype`.
  """
  action_size = specs.action_size(action_size)
  made = networks_lib.make_crossq_networks(
    observation_size, action_size, config.network,
    config.own_networks(networks, 2 * action_size))

  def round_fn(
    state: CrossQState, hyperparams: types.Hyperparams,
    transitions: types.Transition, temperature: types.Array,
  ) -> batch_norm.Round:
    def loss(
      params: types.Params, targets: None, critic_state: types.State,
      batch: batch_norm.Batch,
    ) -> tuple[types.Array, tuple[types.Array, types.State]]:
      outputs, moved = made.critic.apply(
        params, critic_state, *batch.inputs, is_training=True)
      q, next_q = jnp.split(outputs[..., 0], 2)
      loss = jax.vmap(losses.sac_critic_loss, in_axes=(0, 0, 0, 0, 0, None))(
        q, batch.reward, batch.discount, next_q, batch.next_log_prob,
        temperature)
      return jnp.mean(loss), (jnp.mean(q), moved)

    return batch_norm.Round(state, loss, lambda outputs: outputs[..., 0], {})

  return batch_norm.batch_norm_learner(
    observation_size, action_size, config, made,
    soft_policy.Kind(CrossQState, CrossQGenotype, base.Optimizer(_B1)),
    round_fn)
