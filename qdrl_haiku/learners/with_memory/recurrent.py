"""Makes a learner of recurrent networks act, and learn from sequences."""

import dataclasses

import jax
import jax.numpy as jnp

from qdrl_haiku import eager, networks, specs, types
from qdrl_haiku.learners import base, statistics
from qdrl_haiku.learners.check import (
  check_learner_rollout,
  check_learner_update,
)

_MEMORY = "memory"
_ROLES = ("policy", "critic")


def recurrent(
  learner: base.Learner, observation_size: int | specs.Observation,
  cell: networks.Cell, length: int = 1, burn_in: int = 0,
) -> base.Learner:
  """Makes a learner of recurrent networks, whose agents remember.

  Transitions store the `memory` with which an agent acted: M numbers of the
  policy, and M of the critics. Updates unroll the encoders along rollouts, or
  sequences from replay, whose stored memories are of older networks, which a
  burn-in makes up for (Kapturowski et al., "Recurrent experience replay in
  distributed reinforcement learning", 2019). Next observations are seen by one
  more step. An agent that acts greedily remembers for its policy alone.

  Args:
    learner: of recurrent networks; its states have `observation_statistics`,
      and its updates' observations are `networks.Sequences`.
    observation_size: O, or the spec of observations.
    cell: of the encoders.
    length: L, steps of sequences from replay.
    burn_in: how many first steps of a sequence aren't learned from.

  Returns:
    The learner; its state is that of the given one.
  """
  spec = specs.observation_spec(observation_size)
  encoders = {role: networks.encoder(spec, cell, role) for role in _ROLES}
  on_policy = learner.learns_from == "rollout"

  def memory() -> dict[str, types.Array]:
    state = jax.eval_shape(learner.init, jax.random.key(0))
    return {
      role: jnp.zeros(cell.memory_size, jnp.float32) for role in _ROLES
      if getattr(state, f"{role}_params") is not None}

  def perceive(
    state: types.State, observation: types.Tree, memory: types.Tree
  ) -> tuple[types.State, types.Tree, types.Tree]:
    """Returns the state and inputs of `learner`, and the next memories."""
    seen = statistics.normalize_by_statistics(
      state.observation_statistics, observation)
    after = {
      role: encoders[role].apply(getattr(state, f"{role}_params"), seen, x)
      for role, x in memory.items()}
    encoded = networks.Encoded(seen, after["policy"][..., : cell.size])
    return state._replace(observation_statistics=None), encoded, after

  @eager.compiled_if_eager()
  def act(
    state: types.State, hyperparams: types.Hyperparams,
    observation: types.Tree, memory: types.Tree, key: types.Key,
  ) -> types.Acted:
    plain, seen, after = perceive(state, observation, memory)
    acted = learner.act(plain, hyperparams, seen, (), key)
    return acted._replace(
      memory=after, extras=acted.extras | {_MEMORY: memory})

  def act_greedy(
    state: types.State, observation: types.Tree, memory: types.Tree
  ) -> types.Acted:
    plain, seen, after = perceive(
      state, observation, {"policy": memory["policy"]})
    action = learner.act_greedy(plain, seen, ()).action
    return types.Acted(action, memory | after)

  @eager.compiled_if_eager()
  def update(
    state: types.State, hyperparams: types.Hyperparams,
    transitions: types.Transition, key: types.Key,
  ) -> tuple[types.State, types.Metrics]:
    steps = transitions
    if on_policy:
      check_learner_rollout(
        transitions, hyperparams, learner.hyperparams, stores=[_MEMORY])
      steps = jax.tree.map(lambda x: x.swapaxes(0, 1), transitions)
    else:
      check_learner_update(
        transitions, hyperparams, learner.hyperparams,
        learner.batches_per_update, length)
      transitions = jax.tree.map(
        lambda x: x[:, :, burn_in:].reshape(x.shape[0], -1, *x.shape[3:]),
        transitions)
    ends = (steps.discount == 0) | (steps.extras["truncation"] > 0)
    begins = jnp.roll(ends, 1, axis=-1).at[..., 0].set(True)
    seen, beyond = (
      statistics.normalize_by_statistics(state.observation_statistics, x)
      for x in (steps.observation, steps.next_observation))
    stored: types.Tree = steps.extras[_MEMORY]
    sequences: types.Tree = networks.Sequences(
      seen, begins, stored, burn_in=burn_in)
    following: types.Tree = dataclasses.replace(
      sequences, next_observation=jax.tree.map(
        lambda x: jax.lax.slice_in_dim(x, burn_in, None, axis=ends.ndim - 1),
        beyond))
    after, metrics = learner.update(
      state._replace(observation_statistics=None), hyperparams,
      transitions._replace(observation=sequences, next_observation=following),
      key)
    return after._replace(
      observation_statistics=state.observation_statistics), metrics

  return learner._replace(
    act=act, act_greedy=act_greedy, update=update, memory=memory,
    stores=(*learner.stores, _MEMORY), supports_n_step=False, share=None,
    learns_from="rollout" if on_policy else "sequences",
    sequence_length=length, burn_in=burn_in)
