"""Parallelised Q-networks: no replay, no target network, many environments.

Gallici et al., "Simplifying deep temporal difference learning", arXiv
2407.04811.
"""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp

from qdrl_haiku import eager, losses, platform, ranges, specs, types
from qdrl_haiku import networks as networks_lib
from qdrl_haiku.hyperparameter import Hyperparameter
from qdrl_haiku.learners import (
  base,
  epsilon_greedy,
  hyperparameters,
  rollouts,
  statistics,
)
from qdrl_haiku.learners.check import check_learner_rollout
from qdrl_haiku.learners.config import RolloutAgentConfig
from qdrl_haiku.learners.dqn import DQNGenotype
from qdrl_haiku.learners.with_memory.remembering import remembering

_OWN = {
  "q_lambda": Hyperparameter(
    0.65, "how much PQN's targets count later values", high=1.0,
    search=ranges.Uniform(0.5, 0.95)),
  "max_gradient_norm": dataclasses.replace(
    rollouts.MAX_GRADIENT_NORM, default=10.0)}


@dataclasses.dataclass(frozen=True)
class PQNConfig(RolloutAgentConfig):
  """Shapes PQN's network, which is layer-normalised, and its computation."""

  hyperparameters = (
    _OWN | epsilon_greedy.HYPERPARAMETERS
    | hyperparameters.common_hyperparameters_without(
      "critic_learning_rate", "tau", "weight_decay",
      *hyperparameters.OF_TEMPERATURES))


class PQNState(NamedTuple):
  """One PQN agent: that of DQN without a target network, see `DQNState`."""

  policy_params: types.Params
  policy_optimizer_state: types.State
  observation_statistics: statistics.ObservationStatistics | None


@remembering
def pqn(
  observation_size: int | specs.Observation, action_size: specs.Action,
  config: PQNConfig = PQNConfig(),
  networks: networks_lib.OwnNetworks | None = None,
) -> base.Learner:
  """Makes PQN, an on-policy learner of discrete actions.

  Each update takes a rollout [T, E] and learns as PPO's critic does, which
  judges an observation by its best action: the targets, Peng's Q(lambda), are
  computed with the network before its first step on minibatches. What keeps
  values from diverging without a target network is LayerNorm before each
  activation of its perceptron. An agent explores as one of DQN; the optimiser
  is Adam, for the paper's rectified one.

  Its hyperparameters are `config.declared`.

  Args and errors are those of `dqn`.

  Returns:
    The learner; its state is a `PQNState`, its genotype a `DQNGenotype`.
  """
  action = specs.discrete_spec(action_size)
  shape = networks_lib.ResidualNetworkConfig(
    **{**vars(config.network), "layer_norm": True})
  network = networks_lib.make_dqn_network(
    observation_size, action, shape, config.own_networks(networks, action.size))
  optimizer = base.Optimizer()

  @eager.compiled_if_eager()
  def update(
    state: PQNState, hyperparams: types.Hyperparams,
    transitions: types.Transition, key: types.Key,
  ) -> tuple[PQNState, types.Metrics]:
    check_learner_rollout(
      transitions, hyperparams, learner.hyperparams, config.num_minibatches)
    observation, next_observation = (
      statistics.normalize_by_statistics(state.observation_statistics, x)
      for x in (transitions.observation, transitions.next_observation))
    value, next_value = (
      jnp.max(network.apply(state.policy_params, x), axis=-1)
      for x in (observation, next_observation))
    target = value + rollouts.advantages(
      transitions, hyperparams, value, next_value, hyperparams["q_lambda"])

    def learn(
      state: PQNState, batch: types.Tree, _: types.Key
    ) -> tuple[PQNState, types.Metrics]:
      observation, action, target = batch

      def loss_fn(params: types.Params) -> base.LossAndMore:
        q, moved = network.in_training(params, observation)
        taken = jax.vmap(lambda q, i: q[i])(platform.outputs(q), action)
        loss = jax.vmap(losses.ppo_critic_loss)(taken, target)
        return jnp.mean(loss), (jnp.mean(q), moved)

      descent = optimizer.descend(
        loss_fn, state.policy_params, state.policy_optimizer_state,
        hyperparams["policy_learning_rate"],
        max_norm=hyperparams["max_gradient_norm"])
      return state._replace(
        policy_params=descent.params,
        policy_optimizer_state=descent.optimizer_state), {
        "critic_loss": descent.loss, "q_mean": descent.more,
        "gradient_norm/policy": descent.gradient_norm}

    epsilon = epsilon_greedy.epsilon_now(state, hyperparams)
    state, metrics = rollouts.learn_by_minibatches(
      config, learn, state, rollouts.join_steps(
        (observation, transitions.action, target)), key)
    return state, metrics | {"epsilon": epsilon}

  learner = epsilon_greedy.epsilon_greedy(
    observation_size, action, config, network, PQNState, DQNGenotype, update,
    config.num_steps)._replace(learns_from="rollout")
  return learner
