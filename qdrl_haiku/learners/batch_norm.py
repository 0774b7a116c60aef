"""Makes SAC whose critics are normalised by batches, as CrossQ and XQC are."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from qdrl_haiku import eager, losses, networks, types
from qdrl_haiku.learners import base, hyperparameters, soft_policy, statistics
from qdrl_haiku.learners.check import check_update
from qdrl_haiku.learners.config import DelayedSoftAgentConfig
from qdrl_haiku.learners.hyperparameters import Hyperparameter

AtomsFn = Callable[
  [statistics.RewardStatistics, types.Hyperparams, types.Array], types.Array
]
_Critics = tuple[types.Params, types.State, optax.OptState]


class Parts(NamedTuple):
  """Holds what differs between the two.

  Attributes:
    state: the type of an agent, with `target_critic_params` if there are target
      critics, and `reward_statistics` if there are atoms.
    genotype: the type of what a repertoire stores of it.
    declared: all hyperparameters, by name.
    optimizer: of the policy and of the critics.
    atoms: (statistics of rewards, hyperparameters, temperature) -> [K], the
      values that the critics' outputs are logits of, with target critics; None
      where outputs are values, and the critics are their own targets.
    constrain: (the critics' parameters) -> parameters, after each step.
  """

  state: type[types.State]
  genotype: type[types.Tree]
  declared: Mapping[str, Hyperparameter]
  optimizer: base.Optimizer
  atoms: AtomsFn | None = None
  constrain: Callable[[types.Params], types.Params] = lambda params: params


def batch_norm_learner(
  observation_size: int,
  action_size: int,
  config: DelayedSoftAgentConfig,
  made: networks.BatchNormNetworks,
  parts: Parts,
) -> base.Learner:
  """Makes SAC with normalised critics of those parts."""
  policy, critic = made
  optimizer, temperature_optimizer = parts.optimizer, base.Optimizer()
  soft = soft_policy.soft_policy(
    policy, optimizer, temperature_optimizer, config.learn_temperature
  )
  declared = hyperparameters.chosen(
    parts.declared, temperature=config.learn_temperature
  )
  defaults = hyperparameters.defaults(declared, action_size)

  def init(key: types.Key) -> types.State:
    policy_key, critic_key = jax.random.split(key)
    critic_params, critic_state = critic.init(critic_key)
    fields = {
      "policy_params": policy.init(policy_key),
      "critic_params": critic_params,
      "critic_state": critic_state,
      "log_temperature": soft_policy.initial_log_temperature(config),
      "observation_statistics": statistics.initial(
        observation_size, config.normalizes
      ),
    }
    if parts.atoms is not None:
      fields["reward_statistics"] = statistics.init_rewards()
    return from_genotype(parts.genotype(**fields))

  def genotype(state: types.State) -> types.Tree:
    return parts.genotype(
      **{name: getattr(state, name) for name in parts.genotype._fields}
    )

  def from_genotype(genotype: types.Tree) -> types.State:
    fields = genotype._asdict()
    if parts.atoms is not None:
      # A copy: a buffer can't be donated twice.
      fields["target_critic_params"] = jax.tree.map(
        jnp.copy, fields["critic_params"]
      )
    return parts.state(
      **fields,
      policy_optimizer_state=optimizer.init(fields["policy_params"]),
      critic_optimizer_state=optimizer.init(fields["critic_params"]),
      temperature_optimizer_state=temperature_optimizer.init(
        fields["log_temperature"]
      )
      if config.learn_temperature
      else None,
    )

  @eager.compiled()
  def update(
    state: types.State,
    hyperparams: types.Hyperparams,
    transitions: types.Transition,
    key: types.Key,
  ) -> tuple[types.State, types.Metrics]:
    check_update(transitions, hyperparams, defaults, config.policy_delay)
    observation, next_observation = (
      statistics.normalize(state.observation_statistics, x)
      for x in (transitions.observation, transitions.next_observation)
    )
    next_key, policy_key = jax.random.split(key)
    temperature = jnp.exp(state.log_temperature)
    rewards = atoms = None
    if parts.atoms is not None:
      rewards = statistics.update_rewards(
        state.reward_statistics, transitions.reward
      )
      atoms = parts.atoms(rewards, hyperparams, temperature)
    # The policy and the targets stand still during a round, so one pass serves
    # all batches.
    next_action, next_log_prob = soft.at(
      state.policy_params, next_observation
    ).sample_and_log_prob(seed=next_key)
    inputs = (
      jnp.concatenate([observation, next_observation], axis=1),
      jnp.concatenate([transitions.action, next_action], axis=1),
    )
    size = observation.shape[1]

    def next_values(*inputs: types.Array) -> types.Array:
      outputs, _ = critic.apply(
        state.target_critic_params,
        state.critic_state,
        *inputs,
        is_training=True,
        rows=slice(size, None),
      )
      return _values(outputs, atoms)

    batches = (
      inputs,
      transitions.reward * hyperparams["reward_scaling"],
      transitions.discount * hyperparams["discount"],
      None if atoms is None else jax.vmap(next_values)(*inputs),
      next_log_prob,
    )

    def critic_step(
      carry: _Critics, batch: types.Tree
    ) -> tuple[_Critics, types.Metrics]:
      params, critic_state, optimizer_state = carry
      inputs, reward, discount, next_q, log_prob = batch

      def loss_fn(
        params: types.Params,
      ) -> tuple[types.Array, tuple[types.Tree, types.Params]]:
        rows = slice(None) if atoms is None else slice(size)
        outputs, moved = critic.apply(
          params, critic_state, *inputs, is_training=True, rows=rows
        )
        if atoms is None:
          q, next_values = jnp.split(_values(outputs, None), 2)
          loss = jax.vmap(
            losses.sac_critic_loss, in_axes=(0, 0, 0, 0, 0, None)
          )(q, reward, discount, next_values, log_prob, temperature)
          return jnp.mean(loss), ((jnp.mean(q), moved), params)
        loss = jax.vmap(
          losses.xqc_critic_loss, in_axes=(0, 0, 0, 0, 0, None, None)
        )(outputs, reward, discount, next_q, log_prob, temperature, atoms)
        mean = jnp.mean(loss)
        return mean, ((jnp.mean(_values(outputs, atoms)), moved), params)

      descent = optimizer.descend(
        loss_fn, params, optimizer_state, hyperparams["critic_learning_rate"]
      )
      q_mean, critic_state = descent.more
      params = parts.constrain(descent.params)
      return (params, critic_state, descent.optimizer_state), {
        "critic_loss": descent.loss,
        "q_mean": q_mean,
        "gradient_norm/critic": optax.tree.norm(descent.gradients),
      }

    (critic_params, critic_state, critic_optimizer_state), metrics = (
      jax.lax.scan(
        critic_step,
        (
          state.critic_params,
          state.critic_state,
          state.critic_optimizer_state,
        ),
        batches,
        # A round is short: unrolled, XLA fuses across its steps.
        unroll=True,
      )
    )

    def q_fn(action: types.Array) -> types.Array:
      outputs, _ = critic.apply(
        critic_params, critic_state, observation[-1], action, is_training=False
      )
      return _values(outputs, atoms)

    state, policy_metrics = soft.step(
      state, hyperparams, observation[-1], q_fn, policy_key
    )
    state = state._replace(
      critic_params=critic_params,
      critic_state=critic_state,
      critic_optimizer_state=critic_optimizer_state,
    )
    if atoms is not None:
      state = state._replace(
        target_critic_params=base.move_targets(
          state.target_critic_params, critic_params, hyperparams["tau"]
        ),
        reward_statistics=rewards,
      )
    metrics = jax.tree.map(jnp.mean, metrics) | policy_metrics
    if atoms is not None:
      metrics["largest_value"] = atoms[-1]
    return state, metrics

  return base.Learner(
    init=init,
    update=update,
    act=soft.act,
    act_greedy=soft.act_greedy,
    observe=statistics.observe,
    hyperparams=defaults,
    batches_per_update=config.policy_delay,
    genotype=genotype,
    from_genotype=from_genotype,
    declared=declared,
  )


def _values(outputs: types.Array, atoms: types.Array | None) -> types.Array:
  """Returns the values [B, 2] that the critics' outputs [B, 2, K] stand for."""
  if atoms is None:
    return outputs[..., 0]
  of_twins = jax.vmap(losses.categorical_value, in_axes=(0, None))
  return jax.vmap(of_twins, in_axes=(0, None))(outputs, atoms)
