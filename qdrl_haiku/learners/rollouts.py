"""Learns from rollouts by minibatches, as PPO and PQN do."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from qdrl_haiku import losses, types
from qdrl_haiku.hyperparameter import Hyperparameter
from qdrl_haiku.learners.config import RolloutAgentConfig

MAX_GRADIENT_NORM = Hyperparameter(
  1.0,
  "length to which longer gradients of PPO's and PQN's networks are shortened",
  excludes_low=True)


def advantages(
  rollout: types.Transition, hyperparams: types.Hyperparams,
  value: types.Array, next_value: types.Array, lambda_: types.Array,
) -> types.Array:
  """Returns `losses.ppo_advantages` of a `rollout`, [T, E].

  `value` and `next_value`, [T, E], are the critic's before and after each step;
  `hyperparams` scale rewards and discounts, and `lambda_` is in [0, 1].
  """
  return jax.vmap(
    losses.ppo_advantages, in_axes=(1, 1, 1, 1, 1, None), out_axes=1)(
    rollout.reward * hyperparams["reward_scaling"],
    rollout.discount * hyperparams["discount"], rollout.extras["truncation"],
    value, next_value, lambda_)


def learn_by_minibatches(
  config: RolloutAgentConfig,
  learn: Callable[
    [types.State, types.Tree, types.Key], tuple[types.State, types.Metrics]],
  state: types.State, rows: types.Tree, key: types.Key,
) -> tuple[types.State, types.Metrics]:
  """Goes through rows, shuffled anew each time, by equal minibatches.

  Args:
    config: how often, and by how many.
    learn: (state, some rows, key) -> (state, metrics).
    state: of the agent.
    rows: leaves [N, ...], steps or whole environments.
    key: consumed.

  Returns:
    The state after all, and means of the metrics.
  """
  shuffle_key, learn_key = jax.random.split(key)
  size = jax.tree.leaves(rows)[0].shape[0]
  places = jax.vmap(lambda key: jax.random.permutation(key, size))(
    jax.random.split(shuffle_key, config.num_epochs))

  def on_minibatch(
    state: types.State, inputs: tuple[types.Array, types.Key]
  ) -> tuple[types.State, types.Metrics]:
    places, key = inputs
    return learn(state, jax.tree.map(lambda x: x[places], rows), key)

  state, metrics = jax.lax.scan(on_minibatch, state, (
    places.reshape(config.num_steps, -1),
    jax.random.split(learn_key, config.num_steps)))
  return state, jax.tree.map(jnp.mean, metrics)


def join_steps(tree: types.Tree) -> types.Tree:
  """Joins the first two axes of arrays."""
  return jax.tree.map(
    lambda x: jnp.asarray(x).reshape(-1, *x.shape[2:]), tree)
