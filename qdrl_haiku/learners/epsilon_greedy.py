"""Acts epsilon-greedily, for all learners of values of discrete actions.

Their states have the fields of `DQNState`, with or without a target network.
"""

from collections.abc import Callable

import distrax
import jax.numpy as jnp

from qdrl_haiku import eager, networks, ranges, specs, types
from qdrl_haiku.hyperparameter import Hyperparameter
from qdrl_haiku.learners import base, hyperparameters, statistics
from qdrl_haiku.learners.config import AgentConfig

HYPERPARAMETERS = {
  "epsilon": Hyperparameter(
    0.05, "share of collected actions of DQN and PQN that are drawn uniformly",
    high=1.0, search=ranges.LogUniform(0.01, 0.2)),
  "epsilon_updates": Hyperparameter(
    1000.0, "critic steps in which that share falls from 1 to epsilon",
    low=1.0)}


def epsilon_now(
  state: types.State, hyperparams: types.Hyperparams
) -> types.Array:
  """Returns the share [] of actions drawn uniformly, after so many steps."""
  count = state.policy_optimizer_state.count.astype(jnp.float32)
  share = count / hyperparams["epsilon_updates"]
  return 1 - (1 - hyperparams["epsilon"]) * jnp.minimum(share, 1.0)


def epsilon_greedy(
  observation_size: int | specs.Observation, action: specs.Discrete,
  config: AgentConfig, network: networks.Network, kind: type[types.State],
  genotype_kind: type[types.Tree],
  update: Callable[..., tuple[types.State, types.Metrics]],
  batches_per_update: int = 1,
) -> base.Learner:
  """Makes a learner, from replay, that acts by values [..., n].

  Args:
    observation_size: O, or the spec of observations.
    action: the spec of actions, one of n.
    config: the learner's.
    network: observation [..., O] -> values [..., n].
    kind: the named tuple that an agent's state is.
    genotype_kind: that of its genotype: the network's parameters, statistics.
    update: as `Learner.update`.
    batches_per_update: N.
  """
  optimizer = base.Optimizer()

  def init(key: types.Key) -> types.State:
    return from_genotype(genotype_kind(
      network.init(key),
      statistics.init_statistics(observation_size, config.normalizes)))

  def from_genotype(genotype: types.Tree) -> types.State:
    return base.learner_state(kind, genotype, optimizer)

  def values(state: types.State, observation: types.Tree) -> types.Array:
    return network.apply(
      state.policy_params,
      statistics.normalize_by_statistics(
        state.observation_statistics, observation))

  @eager.compiled_if_eager()
  def act(
    state: types.State, hyperparams: types.Hyperparams,
    observation: types.Tree, memory: types.Tree, key: types.Key,
  ) -> types.Acted:
    action = distrax.EpsilonGreedy(
      values(state, observation), epsilon_now(state, hyperparams), jnp.int32
    ).sample(seed=key)
    # -1 where values aren't finite.
    return types.Acted(jnp.maximum(action, 0), memory)

  def act_greedy(
    state: types.State, observation: types.Tree, memory: types.Tree
  ) -> types.Acted:
    action = jnp.argmax(values(state, observation), axis=-1)
    return types.Acted(action.astype(jnp.int32), memory)

  return base.Learner(
    init=init, update=update, act=act, act_greedy=act_greedy,
    observe=statistics.observe_statistics,
    hyperparams=hyperparameters.default_hyperparameters(
      config.declared, action),
    batches_per_update=batches_per_update,
    genotype=lambda state: base.learner_state_parts(state, genotype_kind),
    from_genotype=from_genotype, declared=config.declared,
    policy=base.policy_parts(network, "categorical"))
