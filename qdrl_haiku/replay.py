"""A uniform replay buffer for one agent, of any pytree.

The storage is written by index and never moved, so that adding costs what is
added, whatever the capacity. A population's buffers are `jax.vmap` of one.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from qdrl_haiku import types


class ReplayState(NamedTuple):
  """Holds the contents of a buffer.

  Attributes:
    storage: a tree of the example's structure, leaves [capacity, ...].
    position: int32 [], where the next transition goes.
    size: int32 [], how many transitions there are, at most the capacity.
  """

  storage: types.Tree
  position: types.Array
  size: types.Array


class ReplayBuffer(NamedTuple):
  """A replay buffer as pure functions.

  Attributes:
    init: (example) -> ReplayState; the example is one transition, or its
      shapes and dtypes, without a batch axis.
    add: (state, transitions [B, ...]) -> ReplayState; the oldest are
      overwritten when the buffer is full. B is at most the capacity.
    sample: (state, key, shape) -> transitions [*shape, ...], drawn uniformly
      and with replacement in one gather; the key is consumed. The buffer
      must not be empty.
    can_sample: (state, n) -> bool [], whether at least n are there.
    add_where: (state, transitions [B, ...], where bool [B]) -> ReplayState, as
      `add` of those alone for which it's true.
    draw: (state, key, shape) -> int32 [*shape], the places from which `sample`
      gathers with that key.
    later: (state, places int32 [...], n) -> (int32 [...], bool [...]): the
      places of the transitions that were added n after those at `places`, and
      whether there are any.
  """

  init: Callable[[types.Tree], ReplayState]
  add: Callable[[ReplayState, types.Tree], ReplayState]
  sample: Callable[[ReplayState, types.Key, tuple[int, ...]], types.Tree]
  can_sample: Callable[[ReplayState, int], types.Array]
  add_where: Callable[[ReplayState, types.Tree, types.Array], ReplayState]
  draw: Callable[[ReplayState, types.Key, tuple[int, ...]], types.Array]
  later: Callable[
    [ReplayState, types.Array, int], tuple[types.Array, types.Array]
  ]


def uniform(capacity: int) -> ReplayBuffer:
  """Returns a buffer that samples uniformly and forgets the oldest.

  Args:
    capacity: the most transitions that it holds, >= 1.

  Returns:
    The buffer.

  Raises:
    ValueError: if the capacity is below 1; from `add`, if more transitions
      than the capacity are added at once.
  """
  if capacity < 1:
    raise ValueError(
      f"capacity must be at least 1, got {capacity}; 100000 is common."
    )

  def init(example: types.Tree) -> ReplayState:
    return ReplayState(
      storage=jax.tree.map(
        lambda x: jnp.zeros((capacity, *x.shape), x.dtype),
        jax.eval_shape(lambda x: x, example),
      ),
      position=jnp.zeros((), jnp.int32),
      size=jnp.zeros((), jnp.int32),
    )

  def write(
    state: ReplayState,
    transitions: types.Tree,
    indices: types.Array,
    num_added: types.Array | int,
    mode: str,
  ) -> ReplayState:
    """Writes transitions to their places."""
    storage = jax.tree.map(
      lambda stored, new: stored.at[indices].set(
        new.astype(stored.dtype), unique_indices=True, mode=mode
      ),
      state.storage,
      transitions,
    )
    return ReplayState(
      storage=storage,
      position=(state.position + num_added) % capacity,
      size=jnp.minimum(state.size + num_added, capacity),
    )

  def count(transitions: types.Tree) -> int:
    batch_size = jax.tree.leaves(transitions)[0].shape[0]
    if batch_size > capacity:
      raise ValueError(
        f"{batch_size} transitions were added at once to a buffer of capacity "
        f"{capacity}; raise the capacity or add fewer."
      )
    return batch_size

  def add(state: ReplayState, transitions: types.Tree) -> ReplayState:
    batch_size = count(transitions)
    indices = (state.position + jnp.arange(batch_size)) % capacity
    return write(state, transitions, indices, batch_size, "promise_in_bounds")

  def add_where(
    state: ReplayState, transitions: types.Tree, where: types.Array
  ) -> ReplayState:
    batch_size = count(transitions)
    turns = jnp.cumsum(where, dtype=jnp.int32)
    # The others go to places of their own beyond the end, which are dropped.
    indices = jnp.where(
      where,
      (state.position + turns - 1) % capacity,
      capacity + jnp.arange(batch_size),
    )
    return write(state, transitions, indices, turns[-1], "drop")

  def draw(
    state: ReplayState, key: types.Key, shape: tuple[int, ...]
  ) -> types.Array:
    return jax.random.randint(key, shape, 0, state.size)

  def sample(
    state: ReplayState, key: types.Key, shape: tuple[int, ...]
  ) -> types.Tree:
    return gather_from_replay(state.storage, draw(state, key, shape))

  def later(
    state: ReplayState, places: types.Array, n: int
  ) -> tuple[types.Array, types.Array]:
    num_later = (state.position - 1 - places) % capacity
    return (places + n) % capacity, num_later >= n

  def can_sample(state: ReplayState, n: int) -> types.Array:
    return state.size >= n

  return ReplayBuffer(
    init, add, sample, can_sample, add_where, draw, later
  )


def gather_from_replay(storage: types.Tree, places: types.Array) -> types.Tree:
  """Gathers from the storage of a buffer, or a part of it, at places [...]."""
  return jax.tree.map(
    lambda stored: stored.at[places].get(mode="promise_in_bounds"), storage
  )
