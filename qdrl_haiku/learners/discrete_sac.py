"""Soft actor-critic for discrete actions (Christodoulou, arXiv 1910.07207)."""

import jax
import jax.numpy as jnp

from qdrl_haiku import eager, losses, policies, specs, types
from qdrl_haiku import networks as networks_lib
from qdrl_haiku.learners import base, soft_policy, statistics
from qdrl_haiku.learners.check import check_learner_update
from qdrl_haiku.learners.config import SoftAgentConfig


def discrete_sac(
  observation_size: int | specs.Observation, action: specs.Discrete,
  config: SoftAgentConfig, networks: networks_lib.OwnNetworks | None,
  kind: soft_policy.Kind,
) -> base.Learner:
  """Makes `sac` for actions that are one of n.

  Critics judge all actions of an observation at once, so what SAC estimates by
  one action is computed: the target's value, the policy's loss and its entropy.

  Args:
    observation_size: O, or the spec of observations.
    action: one of n.
    config: what shapes networks and computation.
    networks: those of a user's own; the policy makes logits [B, n], the critic
      values [B, n].
    kind: SAC's.
  """
  policy, critic = networks_lib.make_sac_networks(
    observation_size, action, config.network,
    config.own_networks(networks, action.size), config.cell)
  soft = soft_policy.soft_policy(
    observation_size, action, config, policy, kind)

  @eager.compiled_if_eager()
  def update(
    state: types.State, hyperparams: types.Hyperparams,
    transitions: types.Transition, key: types.Key,
  ) -> tuple[types.State, types.Metrics]:
    check_learner_update(transitions, hyperparams, soft.hyperparams, 1)
    batch = statistics.prepare_transitions(
      state.observation_statistics, jax.tree.map(lambda x: x[0], transitions),
      hyperparams)
    next_logits = policy.apply(state.policy_params, batch.next_observation)
    next_q = critic.apply(state.target_critic_params, batch.next_observation)

    def critic_loss_fn(params: types.Params) -> base.LossAndMore:
      q, moved = critic.in_training(params, batch.observation)
      loss = jax.vmap(
        losses.discrete_sac_critic_loss, in_axes=(0, 0, 0, 0, 0, 0, None))(
        q, batch.action, batch.reward, batch.discount, next_q, next_logits,
        jnp.exp(state.log_temperature))
      return jnp.mean(loss), (jnp.mean(q), moved)

    critics = kind.optimizer.descend(
      critic_loss_fn, state.critic_params, state.critic_optimizer_state,
      hyperparams["critic_learning_rate"], hyperparams.get("weight_decay"))
    q = critic.apply(critics.params, batch.observation)

    def judge(
      distribution: policies.Distribution, temperature: types.Array,
      key: types.Key,
    ) -> soft_policy.Judged:
      del key
      loss = jax.vmap(losses.discrete_sac_policy_loss, in_axes=(0, 0, None))(
        q, distribution.logits, temperature)
      return soft_policy.Judged(loss, -distribution.entropy(), {})

    state, metrics = soft.step(
      state, hyperparams, batch.observation, judge, key)
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
