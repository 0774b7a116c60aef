"""Keeps the steps in replay in their order, each environment's in its places.

A step's successor is as many places later as there are environments. So a
non-finite step, which is left out, gets a place too: it holds a marked copy of
a finite step that was added with it, and no window or sequence extends to it.
"""

import jax
import jax.numpy as jnp

from qdrl_haiku import replay
from qdrl_haiku.training.setup import Setup
from qdrl_haiku.types import Array, Key, Transition

TRUNCATION = "truncation"
# Marks a copy, as its `truncation`. That of other steps is 0 or 1: 1 where an
# episode was truncated, or where `cut_order` was called.
INSTEAD = 2


def add_in_order(
  setup: Setup, state: replay.ReplayState, steps: Transition, where: Array
) -> replay.ReplayState:
  """Adds `steps` [B] to a replay `state`; its `setup` has the buffer.

  Copies take the places of the steps where `where`, bool [B], is false.
  """
  has_any = jnp.any(where)
  sources = jnp.where(where, jnp.arange(where.size), jnp.argmax(where))
  truncation = jnp.where(where, steps.extras[TRUNCATION], INSTEAD)
  steps = jax.tree.map(lambda x: x[sources], steps)
  steps = steps._replace(extras=steps.extras | {TRUNCATION: truncation})
  return setup.buffer.add_where(
    cut_order(setup, state, ~has_any), steps,
    jnp.broadcast_to(has_any, where.shape))


def cut_order(
  setup: Setup, state: replay.ReplayState, where: Array | bool = True
) -> replay.ReplayState:
  """Marks the latest steps in a replay `state`, so that none follows on them.

  For a buffer to which steps of other environments are going to be added: an
  inherited one, or one whose environments have been reset. Nothing is done
  unless `where`, bool []; the `setup` has the number of environments.
  """
  latest = state.position - 1 - jnp.arange(setup.config.num_envs)
  places = latest % setup.config.capacity
  extras = state.storage.extras
  ends = extras[TRUNCATION]
  # What stands instead of a step stays that.
  ends = ends.at[places].set(jnp.maximum(ends[places], where))
  return state._replace(
    storage=state.storage._replace(extras=extras | {TRUNCATION: ends}))


def sample_sequences(
  setup: Setup, state: replay.ReplayState, key: Key, shape: tuple[int, ...]
) -> Transition:
  """Draws sequences [..., L] uniformly, of L steps that follow each other.

  Where a step isn't the successor of the one before, since an episode has
  ended or since it's a copy, the one before has a `truncation` or terminated.

  Kapturowski et al., "Recurrent experience replay in distributed reinforcement
  learning", 2019. Args are those of `ReplayBuffer.sample`, the last of `shape`
  being L, and the `setup` with the number of environments.
  """
  *leading, length = shape
  num_envs, capacity = setup.config.num_envs, setup.config.capacity
  num_first = state.held - (length - 1) * num_envs
  first = jax.random.randint(key, leading, 0, jnp.maximum(num_first, 1))
  first += state.position - state.held  # The oldest.
  places = first[..., None] + num_envs * jnp.arange(length)
  steps: Transition = setup.buffer.show(
    state, replay.gather_from_replay(state.storage, places % capacity))
  truncation = steps.extras[TRUNCATION]
  is_copy = truncation == INSTEAD
  before_copy = jnp.roll(is_copy, -1, axis=-1).at[..., -1].set(False)
  return steps._replace(extras=steps.extras | {
    TRUNCATION: jnp.maximum(truncation, before_copy)})
