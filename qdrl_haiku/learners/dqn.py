"""Deep Q-networks (Mnih et al., 2015), double (van Hasselt et al., 2016).

"Human-level control through deep reinforcement learning", and "Deep
reinforcement learning with double Q-learning", arXiv 1509.06461.
"""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp

from qdrl_haiku import eager, losses, platform, specs, types
from qdrl_haiku import networks as networks_lib
from qdrl_haiku.learners import (
  base,
  epsilon_greedy,
  hyperparameters,
  statistics,
)
from qdrl_haiku.learners.check import check_learner_update
from qdrl_haiku.learners.config import AgentConfig
from qdrl_haiku.learners.with_memory.remembering import remembering
from qdrl_haiku.networks import ResidualNetworkConfig


@dataclasses.dataclass(frozen=True)
class DQNConfig(AgentConfig):
  """Shapes DQN's network."""

  hyperparameters = (
    epsilon_greedy.HYPERPARAMETERS
    | hyperparameters.common_hyperparameters_without(
      "critic_learning_rate", *hyperparameters.OF_TEMPERATURES))
  network: ResidualNetworkConfig = ResidualNetworkConfig()


class DQNState(NamedTuple):
  """One DQN agent."""

  # Those of the network of actions' values, the largest of which is the
  # policy's action.
  policy_params: types.Params
  target_policy_params: types.Params  # The target network's.
  policy_optimizer_state: types.State  # Adam's moments.
  # The running statistics, or None.
  observation_statistics: statistics.ObservationStatistics | None


class DQNGenotype(NamedTuple):
  """Holds what a repertoire stores of a DQN agent; see `DQNState`."""

  policy_params: types.Params
  observation_statistics: statistics.ObservationStatistics | None


@remembering
def dqn(
  observation_size: int | specs.Observation, action_size: specs.Action,
  config: DQNConfig = DQNConfig(),
  networks: networks_lib.OwnNetworks | None = None,
) -> base.Learner:
  """Makes double DQN, with the Huber loss, for discrete actions.

  Each update is one step of the network, then one move of the target network.
  An agent explores epsilon-greedily. The share of actions drawn uniformly falls
  in its first `epsilon_updates` updates, which its optimiser counts.

  Its hyperparameters are `config.declared`; `weight_decay` only with residual
  blocks.

  Args:
    observation_size: O, >= 1, or the spec of observations, see `specs`.
    action_size: the spec of actions, one of n.
    config: what shapes the network.
    networks: of which the policy, if any, makes values [B, n].

  Returns:
    The learner; its state is a `DQNState`, its genotype a `DQNGenotype`.

  Raises:
    ValueError: if actions are continuous, a size or a setting is out of its
      range, or a network of a user's own makes other shapes.
  """
  action = specs.discrete_spec(action_size)
  network = networks_lib.make_dqn_network(
    observation_size, action, config.network,
    config.own_networks(networks, action.size))
  optimizer = base.Optimizer()

  @eager.compiled_if_eager()
  def update(
    state: DQNState, hyperparams: types.Hyperparams,
    transitions: types.Transition, key: types.Key,
  ) -> tuple[DQNState, types.Metrics]:
    del key
    check_learner_update(transitions, hyperparams, learner.hyperparams, 1)
    batch = statistics.prepare_transitions(
      state.observation_statistics, jax.tree.map(lambda x: x[0], transitions),
      hyperparams)
    selector, next_q = (
      network.apply(params, batch.next_observation)
      for params in (state.policy_params, state.target_policy_params))

    def loss_fn(params: types.Params) -> base.LossAndMore:
      q, moved = network.in_training(params, batch.observation)
      loss = jax.vmap(losses.dqn_loss)(
        platform.outputs(q), batch.action, batch.reward, batch.discount, next_q,
        selector)
      return jnp.mean(loss), (jnp.mean(q), moved)

    descent = optimizer.descend(
      loss_fn, state.policy_params, state.policy_optimizer_state,
      hyperparams["policy_learning_rate"], hyperparams.get("weight_decay"))
    after = state._replace(
      policy_params=descent.params,
      target_policy_params=base.move_target_networks(
        state.target_policy_params, descent.params, hyperparams["tau"]),
      policy_optimizer_state=descent.optimizer_state)
    return after, {
      "critic_loss": descent.loss, "q_mean": descent.more,
      "epsilon": epsilon_greedy.epsilon_now(state, hyperparams),
      "gradient_norm/policy": descent.gradient_norm}

  learner = epsilon_greedy.epsilon_greedy(
    observation_size, action, config, network, DQNState, DQNGenotype, update)
  return learner
