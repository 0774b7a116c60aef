"""Soft actor-critic (Haarnoja et al., arXiv 1812.05905)."""

import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from qdrl_haiku import eager, losses, policies, specs, types
from qdrl_haiku import networks as networks_lib
from qdrl_haiku.learners import base, soft_policy, statistics
from qdrl_haiku.learners.check import check_learner_update
from qdrl_haiku.learners.config import SequenceAgentConfig, SoftAgentConfig
from qdrl_haiku.learners.hyperparameters import COMMON
from qdrl_haiku.learners.with_memory.remembering import remembering
from qdrl_haiku.networks import ResidualNetworkConfig


@dataclasses.dataclass(frozen=True)
class SACConfig(SoftAgentConfig, SequenceAgentConfig):
  """Shapes SAC's networks and its computation."""

  hyperparameters = COMMON
  network: ResidualNetworkConfig = ResidualNetworkConfig()


class SACState(NamedTuple):
  """One SAC agent."""

  policy_params: types.Params  # The policy's parameters.
  critic_params: types.Params  # The twin critics' parameters, leaves [2, ...].
  # The target critics' parameters, leaves [2, ...].
  target_critic_params: types.Params
  log_temperature: types.Array  # [].
  policy_optimizer_state: types.State  # Adam's moments for the policy.
  critic_optimizer_state: types.State  # Adam's moments for the critics.
  # Adam's moments for the temperature, or None if it is not learned.
  temperature_optimizer_state: types.State | None
  # The running statistics, or None.
  observation_statistics: statistics.ObservationStatistics | None


class SACGenotype(NamedTuple):
  """Holds what a repertoire stores of a SAC agent; see `SACState`."""

  policy_params: types.Params
  critic_params: types.Params
  log_temperature: types.Array
  observation_statistics: statistics.ObservationStatistics | None


@remembering
def sac(
  observation_size: int | specs.Observation, action_size: int | specs.Action,
  config: SACConfig = SACConfig(),
  networks: networks_lib.OwnNetworks | None = None,
) -> base.Learner:
  """Makes soft actor-critic: twin critics, a learned temperature.

  Each update is one step of the critics, then one of the policy against the
  new critics, one of the temperature, and one move of the target critics. The
  policy is evaluated twice: on the next observations for the target, and on
  the observations for policy and temperature together.

  Of discrete actions critics judge all at once, and what is estimated by one
  action otherwise is computed (Christodoulou, arXiv 1910.07207).

  Its hyperparameters are `config.declared`; `weight_decay` only with
  residual blocks, and those of the temperature only if it is learned.

  Args:
    observation_size: O, >= 1, or the spec of observations, see `specs`.
    action_size: A, >= 1, or the spec of actions.
    config: what shapes networks and computation.
    networks: those of a user's own, see `networks.OwnNetworks`.

  Returns:
    The learner; its state is a `SACState`, its genotype a `SACGenotype`.

  Raises:
    ValueError: if a size or a setting is out of its range, or if a network of
      a user's own makes other shapes.
  """
  action = specs.action_spec(action_size)
  head = policies.head(action)
  policy, critic = networks_lib.make_sac_networks(
    observation_size, action, config.network,
    config.own_networks(networks, head.num_outputs), config.cell)
  kind = soft_policy.Kind(SACState, SACGenotype)
  soft = soft_policy.soft_policy(
    observation_size, action, config, policy, kind)

  @eager.compiled_if_eager()
  def update(
    state: SACState, hyperparams: types.Hyperparams,
    transitions: types.Transition, key: types.Key,
  ) -> tuple[SACState, types.Metrics]:
    check_learner_update(transitions, hyperparams, soft.hyperparams, 1)
    batch = statistics.prepare_transitions(
      state.observation_statistics, jax.tree.map(lambda x: x[0], transitions),
      hyperparams)
    next_key, policy_key = jax.random.split(key)
    temperature = jnp.exp(state.log_temperature)

    next_q, next_log_prob, _ = soft.at(
      state.policy_params, batch.next_observation
    ).judged(
      lambda *action: critic.apply(
        state.target_critic_params, batch.next_observation, *action),
      next_key)

    def critic_loss_fn(params: types.Params) -> base.LossAndMore:
      q, moved = head.taken(
        functools.partial(critic.in_training, params, batch.observation),
        batch.action)
      loss = jax.vmap(losses.sac_critic_loss, in_axes=(0, 0, 0, 0, 0, None))(
        q, batch.reward, batch.discount, next_q, next_log_prob, temperature)
      return jnp.mean(loss), (jnp.mean(q), moved)

    critics = kind.optimizer.descend(
      critic_loss_fn, state.critic_params, state.critic_optimizer_state,
      hyperparams["critic_learning_rate"], hyperparams.get("weight_decay"))

    state, metrics = soft.step(
      state, hyperparams, batch.observation,
      lambda *action: critic.apply(critics.params, batch.observation, *action),
      policy_key)
    state = state._replace(
      critic_params=critics.params,
      target_critic_params=base.move_target_networks(
        state.target_critic_params, critics.params, hyperparams["tau"]),
      critic_optimizer_state=critics.optimizer_state)
    return state, metrics | {
      "critic_loss": critics.loss, "q_mean": critics.more,
      "gradient_norm/critic": critics.gradient_norm}

  return soft.learner(
    update, 1, lambda key: {"critic_params": critic.init(key)})
