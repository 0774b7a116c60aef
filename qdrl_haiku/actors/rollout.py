"""Rollouts: one greedy episode of each agent, step by step, to be drawn."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from qdrl_haiku import eager, environments, types
from qdrl_haiku.actors import collection, evaluation
from qdrl_haiku.types import Array, Key, Tree


class Rollout(NamedTuple):
  """Holds one episode of each agent."""

  # Leaves [P, T+1, ...], what was kept of the initial state and of the state
  # after each step.
  extracted: Tree
  # bool [P, T+1], which states belong to the first episode, its last one
  # included. What is extracted of later states means nothing.
  mask: Array
  # [P, T]; step t leads from state t to t + 1, so `mask[:, 1:]` goes with them.
  rewards: Array


@eager.compiled_if_eager("env", "learner", "num_steps", "extract")
def rollout(
  env: environments.BatchedEnvironment, learner: collection.ActingLearner,
  states: types.State, key: Key, num_steps: int,
  extract: evaluation.RecordFn,
) -> Rollout:
  """Rolls out the greedy policies of P agents, in one flat batch.

  The episodes are the first ones that `evaluate` runs with the same key.
  Skills that an environment deals out are dealt along the P agents, so P
  copies of one agent show P skills.

  Args:
    env: the environment.
    learner: whose `act_greedy` chooses the actions.
    states: the agents' states, leaves [P, ...].
    key: one key, from which agent i takes `fold_in(key, i)`, or keys [P];
      consumed.
    num_steps: T, >= 0; `env.episode_length` for whole episodes.
    extract: (states [P]) -> what to keep of them, leaves [P, ...].
  """
  keys = evaluation.evaluation_episode_keys(states, key, 1)[:, 0]
  env_states = collection.remember(learner, env.reset(keys))

  def step(carry: Tree, _: None) -> Tree:
    env_states, alive = carry
    env_states = evaluation.step_evaluation(env, learner, states, env_states)[0]
    seen = (extract(env_states), alive, env_states.reward)
    return (env_states, alive & ~(env_states.done > 0.5)), seen

  first = (extract(env_states), jnp.ones(env_states.done.shape, bool))
  _, (extracted, mask, rewards) = jax.lax.scan(
    step, (env_states, first[1]), length=num_steps)
  extracted, mask = jax.tree.map(
    lambda x, rest: jnp.concatenate([x[None], rest]), first, (extracted, mask))
  return jax.tree.map(
    lambda x: jnp.moveaxis(x, 0, 1), Rollout(extracted, mask, rewards))
