"""Keeps the steps in replay in their order, each environment's in its places.

A step's successor is as many places later as there are environments. So a
non-finite step, which is left out, gets a place too: it holds a marked copy of
a finite step that was added with it, and no window or sequence extends to it.
"""

import jax
import jax.numpy as jnp

from qdrl_haiku import replay
from qdrl_haiku.training.setup import Setup
from qdrl_haiku.types import Array, Transition

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
