"""Makes SAC with batch-normalised networks, on which CrossQ and XQC build."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from qdrl_haiku import eager, losses, networks, specs, types
from qdrl_haiku.learners import base, soft_policy, statistics
from qdrl_haiku.learners.check import check_learner_update
from qdrl_haiku.learners.config import DelayedSoftAgentConfig

AtomsFn = Callable[
  [
    statistics.RewardStatistics, types.Array, types.Hyperparams, types.Array,
  ],
  types.Array]
# Parameters, target parameters or None, running averages, optimiser state.
_Critics = tuple[types.Params, types.Params | None, types.State, types.State]


def batch_norm_learner(
  observation_size: int | specs.Observation, action_size: int,
  config: DelayedSoftAgentConfig, made: networks.BatchNormNetworks,
  kind: soft_policy.Kind, atoms_fn: AtomsFn | None = None,
) -> base.Learner:
  """Makes SAC with normalised networks.

  Args:
    observation_size: O.
    action_size: A.
    config: what shapes the computation.
    made: the networks.
    kind: of learner; if there are atoms, its states have `target_critic_params`
      and `reward_statistics`.
    atoms_fn: (statistics of rewards, discount of a transition whose episode
      goes on, hyperparameters, temperature) -> atoms [K], if the critics'
      outputs are logits and there are target critics; None if the outputs are
      values and the critics serve as their own targets.
  """
  policy, critic = made
  soft = soft_policy.soft_policy(
    observation_size, action_size, config, policy, kind)

  def init_critics(key: types.Key) -> dict[str, types.Tree]:
    params, state = critic.init(key)
    fields = {"critic_params": params, "critic_state": state}
    if atoms_fn is not None:
      fields["reward_statistics"] = statistics.init_reward_statistics()
    return fields

  @eager.compiled_if_eager()
  def update(
    state: types.State, hyperparams: types.Hyperparams,
    transitions: types.Transition, key: types.Key,
  ) -> tuple[types.State, types.Metrics]:
    check_learner_update(
      transitions, hyperparams, soft.hyperparams, config.policy_delay)
    observation, next_observation = (
      statistics.normalize_by_statistics(state.observation_statistics, x)
      for x in (transitions.observation, transitions.next_observation))
    next_key, policy_key = jax.random.split(key)
    temperature = jnp.exp(state.log_temperature)
    rewards = atoms = None
    if atoms_fn is not None:
      rewards = statistics.update_reward_statistics(
        state.reward_statistics, transitions.reward)
      # Of n steps it is the discount's n-th power.
      goes_on = transitions.discount > 0
      discount = hyperparams["discount"] * jnp.where(
        jnp.any(goes_on), jnp.mean(transitions.discount, where=goes_on), 1.0)
      atoms = atoms_fn(rewards, discount, hyperparams, temperature)
    # The policy stands still during a round, so one pass serves all batches.
    next_action, next_log_prob = soft.at(
      state.policy_params, next_observation).sample_and_log_prob(seed=next_key)
    inputs = (
      jax.tree.map(
        lambda x, y: jnp.concatenate([x, y], axis=1), observation,
        next_observation),
      jnp.concatenate([transitions.action, next_action], axis=1))
    size = transitions.reward.shape[1]

    batches = (
      inputs,
      transitions.reward * hyperparams["reward_scaling"],
      transitions.discount * hyperparams["discount"],
      next_log_prob)

    def critic_step(
      carry: _Critics, batch: types.Tree
    ) -> tuple[_Critics, types.Metrics]:
      params, targets, critic_state, optimizer_state = carry
      inputs, reward, discount, log_prob = batch
      next_q: types.Tree = None
      if atoms is not None:
        outputs, _ = critic.apply(
          targets, critic_state, *inputs, is_training=True,
          rows=slice(size, None))
        next_q = _values(outputs, atoms)

      def loss_fn(params: types.Params) -> base.LossAndMore:
        rows = slice(None) if atoms is None else slice(size)
        outputs, moved = critic.apply(
          params, critic_state, *inputs, is_training=True, rows=rows)
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

      descent = kind.optimizer.descend(
        loss_fn, params, optimizer_state, hyperparams["critic_learning_rate"])
      q_mean, critic_state = descent.more
      params = kind.constrain_critics(descent.params)
      if atoms is not None:
        targets = base.move_target_networks(targets, params, hyperparams["tau"])
      return (params, targets, critic_state, descent.optimizer_state), {
        "critic_loss": descent.loss, "q_mean": q_mean,
        "gradient_norm/critic": descent.gradient_norm}

    critics, metrics = jax.lax.scan(
      critic_step,
      (
        state.critic_params,
        getattr(state, "target_critic_params", None),
        state.critic_state,
        state.critic_optimizer_state),
      batches,
      # A round is short: unrolled, XLA fuses across its steps.
      unroll=True)
    critic_params, targets, critic_state, critic_optimizer_state = critics

    def q_fn(action: types.Array) -> types.Array:
      outputs, _ = critic.apply(
        critic_params, critic_state, observation[-1], action, is_training=False)
      return _values(outputs, atoms)

    state, policy_metrics = soft.step(
      state, hyperparams, observation[-1], q_fn, policy_key)
    state = state._replace(
      critic_params=critic_params, critic_state=critic_state,
      critic_optimizer_state=critic_optimizer_state)
    if atoms is not None:
      state = state._replace(
        target_critic_params=targets, reward_statistics=rewards)
    metrics = jax.tree.map(jnp.mean, metrics) | policy_metrics
    if atoms is not None:
      metrics["largest_value"] = atoms[-1]
    return state, metrics

  return soft.learner(update, config.policy_delay, init_critics)


def _values(outputs: types.Array, atoms: types.Array | None) -> types.Array:
  """Returns the values [B, 2] that the critics' outputs [B, 2, K] stand for."""
  if atoms is None:
    return outputs[..., 0]
  of_twins = jax.vmap(losses.categorical_value, in_axes=(0, None))
  return jax.vmap(of_twins, in_axes=(0, None))(outputs, atoms)
