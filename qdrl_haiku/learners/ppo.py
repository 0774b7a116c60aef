"""Proximal policy optimisation (Schulman et al., arXiv 1707.06347)."""

import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from qdrl_haiku import eager, losses, policies, ranges, specs, types
from qdrl_haiku import networks as networks_lib
from qdrl_haiku.hyperparameter import Hyperparameter
from qdrl_haiku.learners import (
  base,
  hyperparameters,
  rollouts,
  statistics,
)
from qdrl_haiku.learners.check import check_learner_rollout
from qdrl_haiku.learners.config import ALL_MEMORIES, RolloutAgentConfig
from qdrl_haiku.learners.with_memory.remembering import remembering

_OWN = {
  "gae_lambda": Hyperparameter(
    0.95, "how much PPO's advantages count later values", high=1.0,
    search=ranges.OneMinusLogUniform(0.9, 0.98)),
  "clip_epsilon": Hyperparameter(
    0.2,
    "how far PPO's policy moves from the one that acted, as a ratio of "
    "probabilities",
    search=ranges.LogUniform(0.1, 0.4), excludes_low=True),
  "entropy_cost": Hyperparameter(
    1e-3, "weight of the entropy in PPO's loss",
    search=ranges.LogUniform(1e-4, 1e-2)),
  "max_gradient_norm": rollouts.MAX_GRADIENT_NORM}
_PRE_TANH, _LOG_PROB = "pre_tanh", "log_prob"


@dataclasses.dataclass(frozen=True)
class PPOConfig(RolloutAgentConfig):
  """Shapes PPO's networks and its computation."""

  hyperparameters = _OWN | hyperparameters.common_hyperparameters_without(
    "tau", "weight_decay", *hyperparameters.OF_TEMPERATURES)
  memories = ALL_MEMORIES


class PPOState(NamedTuple):
  """One PPO agent: see `SACState`; its critic judges observations alone."""

  policy_params: types.Params
  critic_params: types.Params
  policy_optimizer_state: types.State
  critic_optimizer_state: types.State
  observation_statistics: statistics.ObservationStatistics | None


class PPOGenotype(NamedTuple):
  """Holds what a repertoire stores of a PPO agent; see `PPOState`."""

  policy_params: types.Params
  critic_params: types.Params
  observation_statistics: statistics.ObservationStatistics | None


class _Steps(NamedTuple):
  """Holds what PPO learns from, per step; observations are normalised."""

  observation: types.Array
  drawn: types.Array  # Numbers whose tanh actions are, or discrete actions.
  log_prob: types.Array
  advantage: types.Array
  target: types.Array


@remembering
def ppo(
  observation_size: int | specs.Observation, action_size: int | specs.Action,
  config: PPOConfig = PPOConfig(),
  networks: networks_lib.OwnNetworks | None = None,
) -> base.Learner:
  """Makes PPO, an on-policy learner.

  Each update takes a rollout [T, E], with the log-probabilities by which it was
  acted. First the advantages and the critic's targets are computed with the
  critic before its first step. Then `num_epochs` times the rollout is shuffled
  and cut into `num_minibatches`, for recurrent networks of whole environments;
  on each of them policy and critic take a step.
  Advantages are normalised within a minibatch. Discrete actions are drawn from
  a categorical distribution. Others are the tanh of a normal variable, whose
  entropy has no closed form and is estimated by a fresh action for each step;
  log-probabilities are those of the number whose tanh an action is, which the
  action itself doesn't tell at the border; their differences are the same.

  Its hyperparameters are `config.declared`. There is no weight of the
  critic's loss: the networks share nothing, and Adam's steps are the same
  whatever the loss is multiplied by.

  Args and errors are those of `sac`; actions may be discrete.

  Returns:
    The learner; its state is a `PPOState`, its genotype a `PPOGenotype`.
  """
  action_spec = specs.action_spec(action_size)
  head = policies.head(action_spec)
  is_discrete = isinstance(action_spec, specs.Discrete)
  stores = (_LOG_PROB,) if is_discrete else (_PRE_TANH, _LOG_PROB)
  made = networks_lib.make_ppo_networks(
    observation_size, action_spec, config.network,
    config.own_networks(networks, head.num_outputs), config.cell)
  policy, critic = made
  optimizer = base.Optimizer()
  defaults = hyperparameters.default_hyperparameters(
    config.declared, action_spec)

  def init(key: types.Key) -> PPOState:
    policy_key, critic_key = jax.random.split(key)
    return from_genotype(PPOGenotype(
      policy_params=policy.init(policy_key),
      critic_params=critic.init(critic_key),
      observation_statistics=statistics.init_statistics(
        observation_size, config.normalizes)))

  def from_genotype(genotype: PPOGenotype) -> PPOState:
    return base.learner_state(PPOState, genotype, optimizer)

  def acting(
    state: PPOState, observation: types.Array
  ) -> policies.Distribution:
    observation = statistics.normalize_by_statistics(
      state.observation_statistics, observation)
    return head.distribution(policy.apply(state.policy_params, observation))

  @eager.compiled_if_eager()
  def act(
    state: PPOState, hyperparams: types.Hyperparams, observation: types.Array,
    memory: types.Tree, key: types.Key,
  ) -> types.Acted:
    del hyperparams  # The policy is stochastic, and needs no noise scale.
    policy_now = acting(state, observation)
    action, drawn = policy_now.draw(key)
    extras = {_PRE_TANH: drawn, _LOG_PROB: policy_now.log_prob_of_drawn(drawn)}
    return types.Acted(action, memory, {name: extras[name] for name in stores})

  def act_greedy(
    state: PPOState, observation: types.Array, memory: types.Tree
  ) -> types.Acted:
    return types.Acted(acting(state, observation).mode(), memory)

  @eager.compiled_if_eager()
  def update(
    state: PPOState, hyperparams: types.Hyperparams,
    transitions: types.Transition, key: types.Key,
  ) -> tuple[PPOState, types.Metrics]:
    check_learner_rollout(
      transitions, hyperparams, defaults, config.num_minibatches, stores)
    # The critic's targets are in units of scaled rewards. Normalising them by
    # the size of past values would feed the critic's errors back to it.
    steps = _steps_of(critic, state, hyperparams, transitions)
    num_envs = transitions.reward.shape[1]
    if config.cell is not None and num_envs % config.num_minibatches:
      raise ValueError(
        f"num_envs={num_envs} environments can't be cut into num_minibatches="
        f"{config.num_minibatches} of whole sequences, as recurrent agents "
        f"need; make num_envs a multiple of {config.num_minibatches}.")
    learn = functools.partial(_learn, made, head, optimizer, hyperparams)
    return rollouts.learn_by_minibatches(config, learn, state, steps, key)

  return base.Learner(
    init=init, update=update, act=act, act_greedy=act_greedy,
    observe=statistics.observe_statistics, hyperparams=defaults,
    batches_per_update=config.num_steps,
    genotype=lambda state: base.learner_state_parts(state, PPOGenotype),
    from_genotype=from_genotype, declared=config.declared,
    learns_from="rollout", stores=stores,
    policy=base.policy_parts(policy, head.name))


def _steps_of(
  critic: networks_lib.Network, state: PPOState,
  hyperparams: types.Hyperparams, rollout: types.Transition,
) -> _Steps:
  """Computes advantages and targets of a rollout.

  Leaves are [T * E, ...]; of recurrent networks [E, T, ...].
  """
  is_recurrent = isinstance(rollout.observation, networks_lib.Sequences)
  observation, next_observation = (
    statistics.normalize_by_statistics(state.observation_statistics, x)
    for x in (rollout.observation, rollout.next_observation))
  value, next_value = (
    critic.apply(state.critic_params, x)
    for x in (observation, next_observation))
  if is_recurrent:
    value, next_value = (
      x.reshape(rollout.reward.shape[::-1]).T for x in (value, next_value))
  advantage = rollouts.advantages(
    rollout, hyperparams, value, next_value, hyperparams["gae_lambda"])
  steps = _Steps(
    observation=observation,
    drawn=rollout.extras.get(_PRE_TANH, rollout.action),
    log_prob=rollout.extras[_LOG_PROB], advantage=advantage,
    target=value + advantage)
  if is_recurrent:
    return _Steps(observation, *(x.swapaxes(0, 1) for x in steps[1:]))
  return rollouts.join_steps(steps)


def _learn(
  networks: networks_lib.ActorCritic, head: policies.Head,
  optimizer: base.Optimizer, hyperparams: types.Hyperparams, state: PPOState,
  batch: _Steps, key: types.Key,
) -> tuple[PPOState, types.Metrics]:
  """Takes a step of the policy and one of the critic on a minibatch."""
  policy, critic = networks
  if batch.target.ndim > 1:
    batch = _Steps(batch.observation, *rollouts.join_steps(batch[1:]))
  advantage = batch.advantage - jnp.mean(batch.advantage)
  advantage /= jnp.std(batch.advantage) + 1e-8

  def policy_loss_fn(params: types.Params) -> base.LossAndMore:
    parameters, moved = policy.in_training(params, batch.observation)
    distribution = head.distribution(parameters)
    log_prob = distribution.log_prob_of_drawn(batch.drawn)
    loss = jax.vmap(losses.ppo_policy_loss, in_axes=(0, 0, 0, None))(
      log_prob, batch.log_prob, advantage, hyperparams["clip_epsilon"])
    entropy, told = distribution.mean_entropy(key)
    loss = jnp.mean(loss) - hyperparams["entropy_cost"] * entropy
    log_ratio = jax.vmap(losses.ppo_log_ratio)(log_prob, batch.log_prob)
    return loss, ((log_ratio, told | {"policy_entropy": entropy}), moved)

  def critic_loss_fn(params: types.Params) -> base.LossAndMore:
    value, moved = critic.in_training(params, batch.observation)
    loss = jax.vmap(losses.ppo_critic_loss)(value, batch.target)
    return jnp.mean(loss), (jnp.mean(value), moved)

  of_policy = optimizer.descend(
    policy_loss_fn, state.policy_params, state.policy_optimizer_state,
    hyperparams["policy_learning_rate"],
    max_norm=hyperparams["max_gradient_norm"])
  of_critic = optimizer.descend(
    critic_loss_fn, state.critic_params, state.critic_optimizer_state,
    hyperparams["critic_learning_rate"],
    max_norm=hyperparams["max_gradient_norm"])
  state = state._replace(
    policy_params=of_policy.params, critic_params=of_critic.params,
    policy_optimizer_state=of_policy.optimizer_state,
    critic_optimizer_state=of_critic.optimizer_state)
  return state, _metrics(of_policy, of_critic, hyperparams["clip_epsilon"])


def _metrics(
  of_policy: base.Descent, of_critic: base.Descent, clip_epsilon: types.Array
) -> types.Metrics:
  log_ratio, told = of_policy.more
  ratio = jnp.exp(log_ratio)
  is_clipped = jnp.abs(ratio - 1) > clip_epsilon
  return told | {
    "policy_loss": of_policy.loss, "critic_loss": of_critic.loss,
    "value_mean": of_critic.more,
    # KL(policy that acted || policy that learns), estimated by k3 of Schulman,
    # "Approximating KL divergence", 2020; cut as the loss is.
    "policy_divergence": jnp.mean(ratio - 1 - log_ratio),
    "clipped_share": jnp.mean(is_clipped.astype(jnp.float32)),
    "gradient_norm/policy": of_policy.gradient_norm,
    "gradient_norm/critic": of_critic.gradient_norm}
