"""XQC: SAC with categorical critics, batch normalisation, unit-norm weights.

Palenicek et al., arXiv 2509.25174.
"""

import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from qdrl_haiku import losses, specs, types
from qdrl_haiku import networks as networks_lib
from qdrl_haiku.config import setting
from qdrl_haiku.learners import (
  base,
  hyperparameters,
  soft_policy,
  statistics,
)
from qdrl_haiku.learners.config import DelayedSoftAgentConfig
from qdrl_haiku.learners.with_batch_norm import batch_norm
from qdrl_haiku.learners.with_memory.remembering import remembering

# The atoms' range is this times the largest return, so that no return is at its
# border. The largest return is computed for a horizon of at most `_LONGEST`.
_MARGIN = 1.25
_LONGEST = 1000.0


@dataclasses.dataclass(frozen=True)
class XQCConfig(DelayedSoftAgentConfig):
  """Shapes XQC's networks and its computation."""

  hyperparameters = hyperparameters.common_hyperparameters_without(
    "weight_decay")
  num_atoms: int = setting(
    51, "Atoms of the distribution of values of xqc's critics.", low=2,
    offered=False)


class XQCState(NamedTuple):
  """One XQC agent: see `SACState`, and `critic_state` of `CrossQState`."""

  policy_params: types.Params
  critic_params: types.Params
  target_critic_params: types.Params
  critic_state: types.State
  log_temperature: types.Array
  policy_optimizer_state: types.State
  critic_optimizer_state: types.State
  temperature_optimizer_state: types.State | None
  observation_statistics: statistics.ObservationStatistics | None
  # The size of rewards, for the atoms.
  reward_statistics: statistics.RewardStatistics


class XQCGenotype(NamedTuple):
  """Holds what a repertoire stores of an XQC agent; see `XQCState`."""

  policy_params: types.Params
  critic_params: types.Params
  critic_state: types.State
  log_temperature: types.Array
  observation_statistics: statistics.ObservationStatistics | None
  reward_statistics: statistics.RewardStatistics


@remembering
def xqc(
  observation_size: int | specs.Observation, action_size: int | specs.Action,
  config: XQCConfig = XQCConfig(),
  networks: networks_lib.OwnNetworks | None = None,
) -> base.Learner:
  """Makes XQC: SAC whose critics are classifiers, normalised by their batches.

  It learns as `crossq` does, but the targets are values of target critics,
  through which both batches go together, and which move after each critic step.
  The critics' outputs are logits of atoms, whose range is made to hold all
  returns, by the rewards so far; values beyond it are clipped.

  Its hyperparameters are `config.declared`. Args and errors are those of `sac`.

  Returns:
    The learner; its state is an `XQCState`, its genotype an `XQCGenotype`.
  """
  action_size = specs.action_size(action_size)
  own = config.own_networks(networks, 2 * action_size)
  made = networks_lib.make_xqc_networks(
    observation_size, action_size, config.network, own,
    num_atoms=config.num_atoms)
  kind = soft_policy.Kind(XQCState, XQCGenotype)
  # Those of a user's own are what the user makes them.
  if own.policy is None:
    kind = kind._replace(constrain_policy=networks_lib.with_unit_norm)
  if own.critic is None:
    kind = kind._replace(constrain_critics=networks_lib.with_unit_norm)

  def atoms_of(
    rewards: statistics.RewardStatistics, hyperparams: types.Hyperparams,
    discount: types.Array, temperature: types.Array,
  ) -> types.Array:
    """Returns the values [K] of the atoms, of transitions' discounts [N, B]."""
    # Of n steps it is the discount's n-th power.
    goes_on = discount > 0
    discount = hyperparams["discount"] * jnp.where(
      jnp.any(goes_on), jnp.mean(discount, where=goes_on), 1.0)
    # The largest soft reward of a step, with A for the policy's entropy.
    largest = (
      hyperparams["reward_scaling"] * rewards.largest
      + temperature * action_size)
    horizon = 1 / jnp.maximum(1 - discount, 1 / _LONGEST)
    unit = jnp.linspace(-1, 1, config.num_atoms, dtype=jnp.float32)
    return _MARGIN * horizon * largest * unit

  def round_fn(
    state: XQCState, hyperparams: types.Hyperparams,
    transitions: types.Transition, temperature: types.Array,
  ) -> batch_norm.Round:
    rewards = statistics.update_reward_statistics(
      state.reward_statistics, transitions.reward)
    atoms = atoms_of(rewards, hyperparams, transitions.discount, temperature)

    def values(outputs: types.Array) -> types.Array:
      of_twins = jax.vmap(losses.categorical_value, in_axes=(0, None))
      return jax.vmap(of_twins, in_axes=(0, None))(outputs, atoms)

    def loss(
      params: types.Params, targets: types.Params, critic_state: types.State,
      batch: batch_norm.Batch,
    ) -> tuple[types.Array, tuple[types.Array, types.State]]:
      size = batch.reward.shape[0]
      # Statistics are those of both halves, each time.
      apply = functools.partial(made.critic.apply, is_training=True)
      next_outputs, _ = apply(
        targets, critic_state, *batch.inputs, rows=slice(size, None))
      outputs, moved = apply(
        params, critic_state, *batch.inputs, rows=slice(size))
      loss = jax.vmap(
        losses.xqc_critic_loss, in_axes=(0, 0, 0, 0, 0, None, None)
      )(
        outputs, batch.reward, batch.discount, values(next_outputs),
        batch.next_log_prob, temperature, atoms)
      return jnp.mean(loss), (jnp.mean(values(outputs)), moved)

    return batch_norm.Round(
      state._replace(reward_statistics=rewards), loss, values,
      {"largest_value": atoms[-1]})

  return batch_norm.batch_norm_learner(
    observation_size, action_size, config, made, kind, round_fn,
    lambda: {"reward_statistics": statistics.init_reward_statistics()})
