"""Makes SAC with batch-normalised networks, on which CrossQ and XQC build."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from qdrl_haiku import eager, networks, specs, types
from qdrl_haiku.learners import base, soft_policy, statistics
from qdrl_haiku.learners.check import check_learner_update
from qdrl_haiku.learners.config import DelayedSoftAgentConfig


class Batch(NamedTuple):
  """Holds what critics learn from."""

  # Observations [2 B, O] and actions [2 B, A]: first the batch's, then the next
  # ones, with the policy's actions.
  inputs: tuple[types.Tree, types.Array]
  reward: types.Array  # [B], scaled.
  discount: types.Array  # [B], the hyperparameter included.
  next_log_prob: types.Array  # [B], of the policy's next actions.


class Round(NamedTuple):
  """Holds how critics learn from the batches of one update.

  Attributes:
    state: the agent's, with what it has learned of rewards.
    loss: (parameters, those of target critics or None, running state, batch) ->
      (loss [], (mean of the values, running state after the batch)).
    values: the critics' outputs [B, 2, K] -> values [B, 2].
    metrics: numbers by name.
  """

  state: types.State
  loss: Callable[
    [types.Params, types.Params | None, types.State, Batch],
    tuple[types.Array, tuple[types.Array, types.State]]]
  values: Callable[[types.Array], types.Array]
  metrics: types.Metrics


RoundFn = Callable[
  [types.State, types.Hyperparams, types.Transition, types.Array], Round]
"""(state, hyperparameters, transitions [N, B], temperature []) -> `Round`."""
# Parameters, target parameters or None, running averages, optimiser state.
_Critics = tuple[types.Params, types.Params | None, types.State, types.State]


def batch_norm_learner(
  observation_size: int | specs.Observation, action_size: int,
  config: DelayedSoftAgentConfig, made: networks.BatchNormNetworks,
  kind: soft_policy.Kind, round_fn: RoundFn,
  init_more: Callable[[], dict[str, types.Tree]] = dict,
) -> base.Learner:
  """Makes SAC with normalised networks.

  Args:
    observation_size: O, or the spec of observations.
    action_size: A.
    config: what shapes the computation.
    made: the networks.
    kind: of learner.
    round_fn: how the critics learn.
    init_more: () -> further fields of a new genotype.
  """
  policy, critic = made
  soft = soft_policy.soft_policy(
    observation_size, action_size, config, policy, kind)

  def init_critics(key: types.Key) -> dict[str, types.Tree]:
    params, state = critic.init(key)
    return {"critic_params": params, "critic_state": state, **init_more()}

  def batches_of(
    params: types.Params, transitions: types.Transition, key: types.Key
  ) -> Batch:
    """Returns what critics learn from, leaves [N, ...]."""
    # The policy stands still during a round, so one pass serves all batches.
    next_action, next_log_prob = soft.at(
      params, transitions.next_observation).sample_and_log_prob(seed=key)
    inputs: types.Tree = jax.tree.map(
      lambda x, y: jnp.concatenate([x, y], axis=1),
      (transitions.observation, transitions.action),
      (transitions.next_observation, next_action))
    return Batch(
      inputs, transitions.reward, transitions.discount, next_log_prob)

  @eager.compiled_if_eager()
  def update(
    state: types.State, hyperparams: types.Hyperparams,
    transitions: types.Transition, key: types.Key,
  ) -> tuple[types.State, types.Metrics]:
    check_learner_update(
      transitions, hyperparams, soft.hyperparams, config.policy_delay)
    next_key, policy_key = jax.random.split(key)
    learning = round_fn(
      state, hyperparams, transitions, jnp.exp(state.log_temperature))
    transitions = statistics.prepare_transitions(
      state.observation_statistics, transitions, hyperparams)

    def critic_step(
      carry: _Critics, batch: Batch
    ) -> tuple[_Critics, types.Metrics]:
      params, targets, critic_state, optimizer_state = carry

      def loss_fn(params: types.Params) -> base.LossAndMore:
        loss, more = learning.loss(params, targets, critic_state, batch)
        return loss, (more, params)

      descent = kind.optimizer.descend(
        loss_fn, params, optimizer_state, hyperparams["critic_learning_rate"])
      q_mean, critic_state = descent.more
      params = kind.constrain_critics(descent.params)
      if targets is not None:
        targets = base.move_target_networks(targets, params, hyperparams["tau"])
      return (params, targets, critic_state, descent.optimizer_state), {
        "critic_loss": descent.loss, "q_mean": q_mean,
        "gradient_norm/critic": descent.gradient_norm}

    critics, metrics = jax.lax.scan(
      critic_step,
      (
        state.critic_params, getattr(state, "target_critic_params", None),
        state.critic_state, state.critic_optimizer_state),
      batches_of(state.policy_params, transitions, next_key),
      # A round is short: unrolled, XLA fuses across its steps.
      unroll=True)
    params, targets, critic_state, optimizer_state = critics
    last: types.Tree = jax.tree.map(lambda x: x[-1], transitions.observation)

    def q_fn(action: types.Array) -> types.Array:
      outputs, _ = critic.apply(
        params, critic_state, last, action, is_training=False)
      return learning.values(outputs)

    state, policy_metrics = soft.step(
      learning.state, hyperparams, last, q_fn, policy_key)
    state = state._replace(
      critic_params=params, critic_state=critic_state,
      critic_optimizer_state=optimizer_state)
    if targets is not None:
      state = state._replace(target_critic_params=targets)
    metrics = jax.tree.map(jnp.mean, metrics)
    return state, metrics | policy_metrics | learning.metrics

  return soft.learner(update, config.policy_delay, init_critics)
