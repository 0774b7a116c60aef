"""Sequences of steps of one environment, drawn from replay in `order`.

Kapturowski et al., "Recurrent experience replay in distributed reinforcement
learning", 2019.
"""

import jax
import jax.numpy as jnp

from qdrl_haiku import replay
from qdrl_haiku.training import order
from qdrl_haiku.training.setup import Setup
from qdrl_haiku.types import Key, Transition


def sample_sequences(
  setup: Setup, state: replay.ReplayState, key: Key, shape: tuple[int, ...]
) -> Transition:
  """Draws sequences [..., L] uniformly, of L steps that follow each other.

  Where a step isn't the successor of the one before, since an episode has
  ended or since it's a copy, the one before has a `truncation` or terminated.

  Args are those of `ReplayBuffer.sample`, the last of `shape` being L, and the
  `setup` with the number of environments.
  """
  *leading, length = shape
  num_envs, capacity = setup.config.num_envs, setup.config.capacity
  num_first = state.held - (length - 1) * num_envs
  first = jax.random.randint(key, leading, 0, jnp.maximum(num_first, 1))
  first += state.position - state.held  # The oldest.
  places = first[..., None] + num_envs * jnp.arange(length)
  steps: Transition = setup.buffer.show(
    state, replay.gather_from_replay(state.storage, places % capacity))
  truncation = steps.extras[order.TRUNCATION]
  is_copy = truncation == order.INSTEAD
  before_copy = jnp.roll(is_copy, -1, axis=-1).at[..., -1].set(False)
  return steps._replace(extras=steps.extras | {
    order.TRUNCATION: jnp.maximum(truncation, before_copy)})
