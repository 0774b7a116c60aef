"""Updates SAC's policy and temperature, for all learners that have them.

Haarnoja et al., arXiv 1812.05905. The learners' states have the fields of
`SACState`, with or without target critics.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from qdrl_haiku import eager, losses, networks, policies, specs, types
from qdrl_haiku.learners import base, hyperparameters, statistics
from qdrl_haiku.learners.config import SoftAgentConfig


class Kind(NamedTuple):
  """Holds the parts in which learners with SAC's policy differ.

  Attributes:
    state: the type of an agent's state; critics have targets if there is a
      field `target_critic_params`.
    genotype: the type of what a repertoire stores of an agent.
    optimizer: of the policy and of the critics.
    constrain_policy: (parameters) -> parameters, after each of its steps.
    constrain_critics: the same for the critics' parameters.
  """

  state: type[types.State]
  genotype: type[types.Tree]
  optimizer: base.Optimizer = base.Optimizer()
  constrain_policy: Callable[[types.Params], types.Params] = lambda x: x
  constrain_critics: Callable[[types.Params], types.Params] = lambda x: x


class SoftPolicy(NamedTuple):
  """Holds functions that act, and learn to act, as SAC does.

  Attributes:
    hyperparams: the defaults.
    at: (policy's parameters, observation [..., O], normalised) -> distribution.
    step: (state, hyperparameters, observation [B, O], normalised, q_fn, key) ->
      (state, metrics): one step of the policy, and one of the temperature where
      it's learned; q_fn: action [B, A] -> the critics' values [B, 2], or () ->
      those of discrete actions [B, n, 2]. The key is consumed.
    learner: (update, batches_per_update, init_critics) -> the learner;
      init_critics: (key) -> the genotype's fields other than the policy's.
  """

  hyperparams: dict[str, float]
  at: Callable[[types.Params, types.Array], policies.Distribution]
  step: Callable[..., tuple[types.State, types.Metrics]]
  learner: Callable[..., base.Learner]


def soft_policy(
  observation_size: int | specs.Observation, action_size: int | specs.Action,
  config: SoftAgentConfig, policy: networks.Network, kind: Kind,
) -> SoftPolicy:
  """Makes the policy's part of a learner.

  `observation_size` (O or a spec), `action_size` (A or a spec) and `config` are
  those of the learner; `policy` is its network, and `kind` says how it differs.
  """
  head = policies.head(specs.action_spec(action_size))
  optimizer, temperature_optimizer = kind.optimizer, base.Optimizer()
  defaults = hyperparameters.default_hyperparameters(
    config.declared, action_size)

  def from_genotype(genotype: types.Tree) -> types.State:
    moments = None
    if config.learn_temperature:
      moments = temperature_optimizer.init(genotype.log_temperature)
    return base.learner_state(
      kind.state, genotype, optimizer, temperature_optimizer_state=moments)

  def at(
    params: types.Params, observation: types.Array
  ) -> policies.Distribution:
    return head.distribution(policy.apply(params, observation))

  def seen(
    state: types.State, observation: types.Array
  ) -> policies.Distribution:
    return at(
      state.policy_params,
      statistics.normalize_by_statistics(
        state.observation_statistics, observation))

  @eager.compiled_if_eager()
  def act(
    state: types.State, hyperparams: types.Hyperparams,
    observation: types.Array, memory: types.Tree, key: types.Key,
  ) -> types.Acted:
    del hyperparams  # The policy is stochastic, and needs no noise scale.
    return types.Acted(seen(state, observation).sample(seed=key), memory)

  def act_greedy(
    state: types.State, observation: types.Array, memory: types.Tree
  ) -> types.Acted:
    return types.Acted(seen(state, observation).mode(), memory)

  def step(
    state: types.State, hyperparams: types.Hyperparams,
    observation: types.Array, q_fn: Callable[..., types.Array], key: types.Key,
  ) -> tuple[types.State, types.Metrics]:
    temperature = jnp.exp(state.log_temperature)

    def loss_fn(params: types.Params) -> base.LossAndMore:
      parameters, moved = policy.in_training(params, observation)
      q, log_prob, told = head.distribution(parameters).judged(q_fn, key)
      loss = jax.vmap(losses.sac_policy_loss, in_axes=(0, 0, None))(
        q, log_prob, temperature)
      return jnp.mean(loss), ((log_prob, told), moved)

    descent = optimizer.descend(
      loss_fn, state.policy_params, state.policy_optimizer_state,
      hyperparams["policy_learning_rate"], hyperparams.get("weight_decay"))
    log_prob, told = descent.more
    state = state._replace(
      policy_params=kind.constrain_policy(descent.params),
      policy_optimizer_state=descent.optimizer_state)
    metrics = told | {
      "policy_loss": descent.loss, "policy_entropy": -jnp.mean(log_prob),
      "temperature": temperature, "gradient_norm/policy": descent.gradient_norm}
    if not config.learn_temperature:
      return state, metrics

    def temperature_loss_fn(log_temperature: types.Array) -> base.LossAndMore:
      loss = jax.vmap(losses.sac_temperature_loss, in_axes=(None, 0, None))(
        log_temperature, log_prob, hyperparams["target_entropy"])
      return jnp.mean(loss), ((), log_temperature)

    descent = temperature_optimizer.descend(
      temperature_loss_fn, state.log_temperature,
      state.temperature_optimizer_state,
      hyperparams["temperature_learning_rate"])
    state = state._replace(
      log_temperature=descent.params,
      temperature_optimizer_state=descent.optimizer_state)
    return state, metrics | {"temperature_loss": descent.loss}

  def learner(
    update: Callable[..., tuple[types.State, types.Metrics]],
    batches_per_update: int,
    init_critics: Callable[[types.Key], dict[str, types.Tree]],
  ) -> base.Learner:
    def init(key: types.Key) -> types.State:
      policy_key, critic_key = jax.random.split(key)
      temperature = jnp.asarray(config.initial_temperature, jnp.float32)
      genotype = kind.genotype(
        policy_params=policy.init(policy_key),
        log_temperature=jnp.log(temperature),
        observation_statistics=statistics.init_statistics(
          observation_size, config.normalizes),
        **init_critics(critic_key))
      return from_genotype(genotype)

    return base.Learner(
      init=init, update=update, act=act, act_greedy=act_greedy,
      observe=statistics.observe_statistics, hyperparams=defaults,
      batches_per_update=batches_per_update,
      genotype=lambda state: base.learner_state_parts(state, kind.genotype),
      from_genotype=from_genotype, declared=config.declared,
      policy=base.policy_parts(policy, head.name))

  return SoftPolicy(defaults, at, step, learner)
