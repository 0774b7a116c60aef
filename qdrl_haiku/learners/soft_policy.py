"""Updates SAC's policy and temperature, which several learners share.

Haarnoja et al., arXiv 1812.05905. Their states have the fields `policy_params`,
`policy_optimizer_state`, `log_temperature`, `temperature_optimizer_state` and
`observation_statistics` of `SACState`; their configurations
`learn_temperature` and `initial_temperature` of `SACConfig`.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from qdrl_haiku import eager, losses, networks, policies, types
from qdrl_haiku.learners import base, statistics
from qdrl_haiku.learners.config import SoftAgentConfig


def initial_log_temperature(config: SoftAgentConfig) -> types.Array:
  """Returns the logarithm of the temperature that an agent begins with."""
  return jnp.log(jnp.asarray(config.initial_temperature, jnp.float32))


class SoftPolicy(NamedTuple):
  """Acting, and learning to act, as SAC does.

  Attributes:
    at: (policy's parameters, observation [..., O], normalised) -> distribution.
    act: see `base.Learner`.
    act_greedy: see `base.Learner`.
    step: (state, hyperparameters, observation [B, O], normalised, q_fn, key) ->
      (state, metrics): one step of the policy, and one of the temperature where
      it's learned; q_fn: action [B, A] -> the critics' values [B, 2]. The key
      is consumed.
  """

  at: Callable[[types.Params, types.Array], policies.NormalTanh]
  act: base.ActFn
  act_greedy: base.ActGreedyFn
  step: Callable[..., tuple[types.State, types.Metrics]]


def soft_policy(
  policy: networks.Network,
  optimizer: base.Optimizer,
  temperature_optimizer: base.Optimizer,
  learn_temperature: bool,
) -> SoftPolicy:
  """Makes the policy's part of a learner."""

  def at(params: types.Params, observation: types.Array) -> policies.NormalTanh:
    return policies.normal_tanh(policy.apply(params, observation))

  def seen(state: types.State, observation: types.Array) -> policies.NormalTanh:
    return at(
      state.policy_params,
      statistics.normalize(state.observation_statistics, observation),
    )

  @eager.compiled()
  def act(
    state: types.State,
    hyperparams: types.Hyperparams,
    observation: types.Array,
    key: types.Key,
  ) -> types.Array:
    del hyperparams  # The policy is its own noise.
    return seen(state, observation).sample(seed=key)

  def act_greedy(state: types.State, observation: types.Array) -> types.Array:
    return seen(state, observation).mode()

  def step(
    state: types.State,
    hyperparams: types.Hyperparams,
    observation: types.Array,
    q_fn: Callable[[types.Array], types.Array],
    key: types.Key,
  ) -> tuple[types.State, types.Metrics]:
    temperature = jnp.exp(state.log_temperature)

    def loss_fn(
      params: types.Params,
    ) -> tuple[types.Array, tuple[types.Tree, types.Params]]:
      parameters, moved = policy.in_training(params, observation)
      distribution = policies.normal_tanh(parameters)
      action, log_prob = distribution.sample_and_log_prob(seed=key)
      loss = jax.vmap(losses.sac_policy_loss, in_axes=(0, 0, None))(
        q_fn(action), log_prob, temperature
      )
      return jnp.mean(loss), ((action, log_prob), moved)

    descent = optimizer.descend(
      loss_fn,
      state.policy_params,
      state.policy_optimizer_state,
      hyperparams["policy_learning_rate"],
      hyperparams.get("weight_decay"),
    )
    action, log_prob = descent.more
    state = state._replace(
      policy_params=descent.params,
      policy_optimizer_state=descent.optimizer_state,
    )
    metrics = {
      "policy_loss": descent.loss,
      "policy_entropy": -jnp.mean(log_prob),
      "temperature": temperature,
      "action_saturation": base.saturation(action),
      "gradient_norm/policy": optax.tree.norm(descent.gradients),
    }
    if not learn_temperature:
      return state, metrics

    def temperature_loss_fn(log_temperature: types.Array) -> types.Array:
      return jnp.mean(
        jax.vmap(losses.sac_temperature_loss, in_axes=(None, 0, None))(
          log_temperature, log_prob, hyperparams["target_entropy"]
        )
      )

    metrics["temperature_loss"], gradient = jax.value_and_grad(
      temperature_loss_fn
    )(state.log_temperature)
    log_temperature, temperature_optimizer_state = temperature_optimizer.update(
      gradient,
      state.temperature_optimizer_state,
      state.log_temperature,
      hyperparams["temperature_learning_rate"],
    )
    state = state._replace(
      log_temperature=log_temperature,
      temperature_optimizer_state=temperature_optimizer_state,
    )
    return state, metrics

  return SoftPolicy(at, act, act_greedy, step)
