"""Twin delayed deep deterministic policy gradient, TD3.

Fujimoto, van Hoof and Meger, arXiv 1802.09477.
"""

import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from qdrl_haiku import eager, losses, platform, policies, ranges, specs, types
from qdrl_haiku import networks as networks_lib
from qdrl_haiku.config import setting
from qdrl_haiku.hyperparameter import Hyperparameter
from qdrl_haiku.learners import base, hyperparameters, sharing, statistics
from qdrl_haiku.learners import config as config_lib
from qdrl_haiku.learners.check import check_learner_update
from qdrl_haiku.learners.config import SequenceAgentConfig
from qdrl_haiku.learners.with_memory.remembering import remembering
from qdrl_haiku.networks import ResidualNetworkConfig

_OWN = {
  "target_noise_scale": Hyperparameter(
    0.2,
    "standard deviation of TD3's noise on target actions, in units of actions",
    search=ranges.Uniform(0.02, 0.2)),
  "target_noise_clip": Hyperparameter(
    0.5, "largest noise on target actions of TD3, in units of actions"),
  "exploration_noise": Hyperparameter(
    0.3,
    "standard deviation of TD3's noise on collected actions, in units of "
    "actions",
    search=ranges.Uniform(0.1, 0.5))}


@dataclasses.dataclass(frozen=True)
class TD3Config(SequenceAgentConfig):
  """Shapes TD3's networks and its computation."""

  hyperparameters = _OWN | hyperparameters.common_hyperparameters_without(
    *hyperparameters.OF_TEMPERATURES)
  network: ResidualNetworkConfig = ResidualNetworkConfig()
  policy_delay: int = config_lib.policy_delay_setting()
  own_critics: bool = setting(
    True,
    "Whether an agent has critics. One without can't be trained, only improved "
    "by another's, see `SharedCritic`.",
    flag="")


class TD3State(NamedTuple):
  """One TD3 agent: see `SACState`; it has a target policy, and no temperature.

  With `own_critics=False` the critics' parameters and moments are None.
  """

  policy_params: types.Params
  critic_params: types.Params
  target_policy_params: types.Params
  target_critic_params: types.Params
  policy_optimizer_state: types.State
  critic_optimizer_state: types.State
  observation_statistics: statistics.ObservationStatistics | None


class TD3Genotype(NamedTuple):
  """Holds what a repertoire stores of a TD3 agent; see `TD3State`."""

  policy_params: types.Params
  critic_params: types.Params
  observation_statistics: statistics.ObservationStatistics | None


@remembering
def td3(
  observation_size: int | specs.Observation, action_size: int | specs.Action,
  config: TD3Config = TD3Config(),
  networks: networks_lib.OwnNetworks | None = None,
) -> base.Learner:
  """Makes TD3: twin critics, smoothed target actions, a delayed policy.

  Each update is `policy_delay` critic steps, a batch each, then one step of
  the policy on the last batch and one move of the targets. That order is
  fixed in the program: under `vmap` a conditional policy step would be
  computed, and thrown away, at each critic step.

  Its hyperparameters are `config.declared`; `weight_decay` only with
  residual blocks.

  Args and errors are those of `sac`. An agent with a network of a user's own,
  or with convolutions, has no `share`.

  Returns:
    The learner; its state is a `TD3State`, its genotype a `TD3Genotype`.
  """
  action_size = specs.action_size(action_size)
  own = config.own_networks(networks, action_size)
  made = networks_lib.make_td3_networks(
    observation_size, action_size, config.network, own, config.cell)
  policy, critic = made
  optimizer = base.Optimizer()
  defaults = hyperparameters.default_hyperparameters(
    config.declared, action_size)

  def init(key: types.Key) -> TD3State:
    policy_key, critic_key = jax.random.split(key)
    return from_genotype(TD3Genotype(
      policy_params=policy.init(policy_key),
      critic_params=critic.init(critic_key) if config.own_critics else None,
      observation_statistics=statistics.init_statistics(
        observation_size, config.normalizes)))

  def from_genotype(genotype: TD3Genotype) -> TD3State:
    return base.learner_state(TD3State, genotype, optimizer)

  @eager.compiled_if_eager()
  def act(
    state: TD3State, hyperparams: types.Hyperparams, observation: types.Array,
    memory: types.Tree, key: types.Key,
  ) -> types.Acted:
    action, memory, _ = act_greedy(state, observation, memory)
    change = platform.normal_noise(key, action.shape, action.dtype)
    noisy = action + hyperparams["exploration_noise"] * change
    return types.Acted(jnp.clip(noisy, -1.0, 1.0), memory)

  def act_greedy(
    state: TD3State, observation: types.Array, memory: types.Tree
  ) -> types.Acted:
    observation = statistics.normalize_by_statistics(
      state.observation_statistics, observation)
    action = _action(policy, state.policy_params, observation)
    return types.Acted(action, memory)

  @eager.compiled_if_eager()
  def update(
    state: TD3State, hyperparams: types.Hyperparams,
    transitions: types.Transition, key: types.Key,
  ) -> tuple[TD3State, types.Metrics]:
    if not config.own_critics:
      raise ValueError(
        "own_critics=False leaves nothing to learn from; train the agent that "
        "`share` gives, or make one with own_critics=True.")
    check_learner_update(
      transitions, hyperparams, defaults, config.policy_delay)
    transitions = statistics.prepare_transitions(
      state.observation_statistics, transitions, hyperparams)
    critic_params, critic_optimizer_state, metrics = _learn_critics(
      made, optimizer, state, hyperparams, transitions, key)
    last: types.Tree = jax.tree.map(lambda x: x[-1], transitions.observation)
    policy_params, policy_optimizer_state, policy_metrics = _policy_step(
      made, optimizer, state.policy_params, state.policy_optimizer_state,
      critic_params, last, last, hyperparams["policy_learning_rate"],
      hyperparams.get("weight_decay"))
    tau = hyperparams["tau"]
    state = state._replace(
      policy_params=policy_params, critic_params=critic_params,
      target_policy_params=base.move_target_networks(
        state.target_policy_params, policy_params, tau),
      target_critic_params=base.move_target_networks(
        state.target_critic_params, critic_params, tau),
      policy_optimizer_state=policy_optimizer_state,
      critic_optimizer_state=critic_optimizer_state)
    return state, metrics | policy_metrics

  # The context is fixed in the first layer of a perceptron.
  can_share = config.network.network == "mlp" and not any(
    x is not None for x in own)

  def share(context_size: int) -> base.SharedCritic:
    whole = specs.Extended(
      specs.observation_spec(observation_size), "context", context_size)
    of_one = td3(
      whole.spec, action_size, dataclasses.replace(config, own_critics=True))
    judge = networks_lib.make_td3_networks(
      whole.spec, action_size, config.network).critic
    return sharing.shared_critic(
      of_one, whole, functools.partial(
        _policy_step, made._replace(critic=judge), optimizer), optimizer,
      own_critics=config.own_critics)

  return base.Learner(
    init=init, update=update, act=act, act_greedy=act_greedy,
    observe=statistics.observe_statistics, hyperparams=defaults,
    batches_per_update=config.policy_delay,
    genotype=lambda state: base.learner_state_parts(state, TD3Genotype),
    from_genotype=from_genotype, declared=config.declared,
    share=share if can_share else None,
    policy=base.policy_parts(policy, "deterministic_tanh"))


def _action(
  policy: networks_lib.Network, params: types.Params, observation: types.Tree
) -> types.Array:
  """Returns what a policy does without noise."""
  return policies.deterministic_tanh(policy.apply(params, observation)).mode()


def _policy_step(
  networks: networks_lib.ActorCritic, optimizer: base.Optimizer,
  params: types.Params, optimizer_state: types.State,
  critic_params: types.Params, observation: types.Tree, judged: types.Tree,
  learning_rate: types.Array, weight_decay: types.Array | None = None,
) -> tuple[types.Params, types.State, types.Metrics]:
  """Moves a policy up the first critic; `judged` is what the critics see."""
  policy, critic = networks

  def loss_fn(params: types.Params) -> base.LossAndMore:
    parameters, moved = policy.in_training(params, observation)
    action = policies.deterministic_tanh(parameters).mode()
    q = critic.apply(critic_params, judged, action)
    return jnp.mean(jax.vmap(losses.td3_policy_loss)(q)), (action, moved)

  descent = optimizer.descend(
    loss_fn, params, optimizer_state, learning_rate, weight_decay)
  return descent.params, descent.optimizer_state, {
    "policy_loss": descent.loss,
    "action_saturation": policies.action_saturation(descent.more),
    "gradient_norm/policy": descent.gradient_norm}


def _learn_critics(
  networks: networks_lib.ActorCritic, optimizer: base.Optimizer,
  state: TD3State, hyperparams: types.Hyperparams,
  transitions: types.Transition, key: types.Key,
) -> tuple[types.Params, types.State, types.Metrics]:
  """Takes a step of the critics on each batch, leaves [N, B, ...]."""
  policy, critic = networks
  # The targets stand still during a round, so one pass serves all batches.
  next_action = losses.td3_target_action(
    key,
    _action(policy, state.target_policy_params, transitions.next_observation),
    hyperparams["target_noise_scale"], hyperparams["target_noise_clip"])
  next_q = critic.apply(
    state.target_critic_params, transitions.next_observation, next_action)

  def step(
    carry: tuple[types.Params, types.State],
    inputs: tuple[types.Transition, types.Array],
  ) -> tuple[tuple[types.Params, types.State], types.Metrics]:
    params, optimizer_state = carry
    batch, next_q = inputs

    def loss_fn(params: types.Params) -> base.LossAndMore:
      q, moved = critic.in_training(params, batch.observation, batch.action)
      loss = jax.vmap(losses.td3_critic_loss)(
        q, batch.reward, batch.discount, next_q)
      return jnp.mean(loss), (jnp.mean(q), moved)

    descent = optimizer.descend(
      loss_fn, params, optimizer_state, hyperparams["critic_learning_rate"],
      hyperparams.get("weight_decay"))
    return (descent.params, descent.optimizer_state), {
      "critic_loss": descent.loss, "q_mean": descent.more,
      "gradient_norm/critic": descent.gradient_norm}

  (params, optimizer_state), metrics = jax.lax.scan(
    step, (state.critic_params, state.critic_optimizer_state),
    (transitions, next_q),
    # A round is short: unrolled, XLA fuses across its steps.
    unroll=True)
  return params, optimizer_state, jax.tree.map(jnp.mean, metrics)
