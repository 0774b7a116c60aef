"""Evaluating agents: whole episodes, greedily, and only the first of each."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from qdrl_haiku import eager, environments, prng, types
from qdrl_haiku.actors import collection
from qdrl_haiku.actors.collection import ActingLearner
from qdrl_haiku.types import Array, Key, Transition, Tree

RecordFn = Callable[[environments.State], Tree]
"""States [P, N] after a step -> what to keep of them, leaves [P, N, ...]."""


class Evaluation(NamedTuple):
  """Holds the result of an evaluation of a population."""

  returns: Array  # [P, N], undiscounted, of each of N episodes.
  lengths: Array  # int32 [P, N], in steps.
  # [P, N, D], or None if no descriptor function was given.
  descriptors: Array | None
  # Leaves [P, N, T, ...], what was recorded of the states after each step, T
  # steps in a full episode; after the episode's length it means nothing. None
  # if nothing was recorded.
  trajectory: Tree = None
  # [P, N, T, ...], of each step; None if they weren't asked for.
  transitions: Transition | None = None
  # [P, N, M], summed as returns are; None if the environment reports none.
  objectives: Array | None = None


@eager.compiled_if_eager(
  "env", "learner", "num_episodes", "descriptor_fn", "record",
  "keep_transitions")
def evaluate(
  env: environments.BatchedEnvironment, learner: ActingLearner,
  states: types.State, key: Key, num_episodes: int,
  descriptor_fn: environments.DescriptorFn | None = None,
  record: RecordFn | None = None, keep_transitions: bool = False,
) -> Evaluation:
  """Runs greedy episodes of every agent, all of them in one flat batch.

  Each environment runs one episode; steps end when all of them have ended. The
  agents stay as they are, running statistics included.

  Args:
    env: the environment, which may be another than the one of training.
    learner: whose `act_greedy` chooses the actions.
    states: the agents' states, leaves [P, ...].
    key: one key, from which agent i takes `fold_in(key, i)`, or keys [P];
      consumed.
    num_episodes: N, episodes per agent, >= 1.
    descriptor_fn: makes an episode's descriptor of its state descriptors, see
      `environments.DescriptorFn`; None for no descriptors.
    record: what to keep of each step, see `RecordFn`; None for nothing.
    keep_transitions: whether to keep the transitions, to learn from.

  Returns:
    Returns, lengths, descriptors and what was kept per agent and episode.
  """
  env_states = env.reset(evaluation_episode_keys(states, key, num_episodes))
  return evaluate_from_states(
    env, learner, states, env_states, descriptor_fn, record, keep_transitions)


@eager.compiled_if_eager(
  "env", "learner", "descriptor_fn", "record", "keep_transitions", "look")
def evaluate_from_states(
  env: environments.BatchedEnvironment, learner: ActingLearner,
  states: types.State, env_states: environments.State,
  descriptor_fn: Callable[[Tree, Array], Tree] | None = None,
  record: RecordFn | None = None, keep_transitions: bool = False,
  look: RecordFn = lambda state: state.info["next_state_descriptor"],
) -> Evaluation:
  """Evaluates as `evaluate` does, from given initial states.

  Args:
    env: as of `evaluate`, like `learner`, `states` and `keep_transitions`.
    learner: whose `act_greedy` chooses the actions.
    states: the agents' states, leaves [P, ...].
    env_states: the states of `env.reset`, leaves [P, N, ...].
    descriptor_fn: (what `look` has seen [T, ...], mask [T]) -> any tree.
    record: what to keep of each step, see `RecordFn`; None for nothing.
    keep_transitions: whether to keep the transitions.
    look: what `descriptor_fn` gets of each step, see `RecordFn`.

  Returns:
    As `evaluate`; the descriptors are the trees of `descriptor_fn`.
  """
  num_steps, shape = env.episode_length, env_states.done.shape
  env_states = collection.remember(learner, env_states)
  described = getattr(env, "objectives", None)

  def happened(
    before: environments.State, actions: Array, after: environments.State
  ) -> types.Transition:
    transition = collection.collect_transition(before, actions, after)
    if described:
      transition.extras["objectives"] = after.info["objectives"]
    return transition

  def advance(before: environments.State) -> tuple[environments.State, Tree]:
    after, actions = step_evaluation(env, learner, states, before)
    return after, (
      look(after) if descriptor_fn else None, record(after) if record else None,
      happened(before, actions, after) if keep_transitions else None)

  traces = jax.tree.map(
    lambda x: jnp.zeros((num_steps, *x.shape), x.dtype),
    jax.eval_shape(lambda x: advance(x)[1], env_states))

  def unfinished(carry: Tree) -> Array:
    t, _, alive, *_ = carry
    return (t < num_steps) & jnp.any(alive)

  def body(carry: Tree) -> Tree:
    t, env_states, alive, returns, lengths, objectives, traces = carry
    env_states, step = advance(env_states)
    returns = returns + jnp.where(alive, env_states.reward, 0.0)
    lengths = lengths + alive
    if objectives is not None:
      objectives += jnp.where(
        alive[..., None], env_states.info["objectives"], 0.0)
    traces = jax.tree.map(lambda trace, x: trace.at[t].set(x), traces, step)
    alive = alive & ~(env_states.done > 0.5)
    return t + 1, env_states, alive, returns, lengths, objectives, traces

  t, returns = jnp.zeros((), jnp.int32), jnp.zeros(shape, jnp.float32)
  alive, lengths = jnp.ones(shape, bool), jnp.zeros(shape, jnp.int32)
  objectives = described and jnp.zeros((*shape, len(described.names)))
  *_, returns, lengths, objectives, traces = jax.lax.while_loop(
    unfinished, body,
    (t, env_states, alive, returns, lengths, objectives, traces))
  descriptor_trace, *kept = traces
  descriptors = None
  if descriptor_fn is not None:
    mask = jnp.arange(num_steps)[:, None, None] < lengths
    per_member = jax.vmap(descriptor_fn, in_axes=1)
    descriptors = jax.vmap(per_member, in_axes=1)(descriptor_trace, mask)
  recorded, transitions = jax.tree.map(lambda x: jnp.moveaxis(x, 0, 2), kept)
  return Evaluation(
    returns, lengths, descriptors, recorded, transitions, objectives)


def evaluation_episode_keys(
  states: types.State, key: Key, num_episodes: int
) -> Key:
  """Returns the keys [P, N] from which the episodes of a population begin.

  `states` are the agents', leaves [P, ...]; `key` is one key, or [P] of them;
  `num_episodes` is N.
  """
  key = prng.typed_key(key)
  if not key.ndim:
    key = prng.fold_in_indices(key, jax.tree.leaves(states)[0].shape[0])
  return jax.vmap(jax.random.split, (0, None))(key, num_episodes)


def step_evaluation(
  env: environments.BatchedEnvironment, learner: ActingLearner,
  states: types.State, env_states: environments.State,
) -> tuple[environments.State, Array]:
  """Steps all environments greedily: returns their next states and the actions.

  The agents' `states` have leaves [P, ...] and act by `learner`; `env_states`,
  leaves [P, N, ...], are those of `env`, and aren't reset where episodes end.
  """
  acted = jax.vmap(learner.act_greedy)(
    states, env_states.obs, env_states.memory)
  # Without auto-reset: what comes after an episode's end is not looked at.
  after = env.advance(env_states.replace(memory=()), acted.action)
  return after.replace(memory=acted.memory), acted.action
