"""A uniform replay buffer for one agent, of any pytree.

The storage is written by index and never moved, so that adding costs what is
added, whatever the capacity. A population's buffers are `jax.vmap` of one.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from qdrl_haiku import trees
from qdrl_haiku.types import Array, Key, Tree


class ReplayState(NamedTuple):
  """Holds the contents of a buffer."""

  storage: Tree  # Of the example's structure, leaves [capacity, ...].
  position: Array  # int32 [], where the next transition goes.
  size: Array  # int32 [], how many transitions there are.


class ReplayBuffer(NamedTuple):
  """A replay buffer as pure functions.

  Attributes:
    init: (example) -> ReplayState; the example is one transition, or its
      shapes and dtypes, without a batch axis.
    add: (state, transitions [B, ...]) -> ReplayState; the oldest are
      overwritten when the buffer is full. B is at most the capacity. Other
      shapes, and floats for an example of integers, are refused.
    sample: (state, key, shape) -> transitions [*shape, ...], drawn uniformly
      and with replacement in one gather. The buffer must not be empty.
    can_sample: (state, n) -> bool [], whether at least n are there.
    add_where: (state, transitions [B, ...], where bool [B]) -> ReplayState.
    draw: (state, key, shape) -> int32 [*shape], the places from which `sample`
      gathers with that key.
    later: (state, places int32 [...], n) -> (int32 [...], bool [...]): the
      places of the transitions that were added n after those at `places`, and
      whether there are any.
  """

  init: Callable[[Tree], ReplayState]
  add: Callable[[ReplayState, Tree], ReplayState]
  sample: Callable[[ReplayState, Key, tuple[int, ...]], Tree]
  can_sample: Callable[[ReplayState, int], Array]
  add_where: Callable[[ReplayState, Tree, Array], ReplayState]
  draw: Callable[[ReplayState, Key, tuple[int, ...]], Array]
  later: Callable[[ReplayState, Array, int], tuple[Array, Array]]


def uniform(capacity: int) -> ReplayBuffer:
  """Returns a buffer that samples uniformly and forgets the oldest.

  Args:
    capacity: the most transitions that it holds, >= 1.
  """

  def init(example: Tree) -> ReplayState:
    return ReplayState(
      storage=jax.tree.map(
        lambda x: jnp.zeros((capacity, *x.shape), x.dtype),
        jax.eval_shape(lambda x: x, example)),
      position=jnp.zeros((), jnp.int32), size=jnp.zeros((), jnp.int32))

  def write(
    state: ReplayState, transitions: Tree, indices: Array,
    num_added: Array | int, mode: str,
  ) -> ReplayState:
    """Writes transitions to their places."""
    storage = jax.tree.map(
      lambda stored, new: stored.at[indices].set(
        new.astype(stored.dtype), unique_indices=True, mode=mode),
      state.storage, transitions)
    return ReplayState(
      storage=storage, position=(state.position + num_added) % capacity,
      size=jnp.minimum(state.size + num_added, capacity))

  def count(state: ReplayState, transitions: Tree) -> int:
    """Returns B; refuses what would be broadcast or cut."""
    rows = jax.eval_shape(lambda x: x, transitions)
    shape = jax.tree.leaves(rows)[0].shape
    batch_size = shape[0] if shape else 1

    def expect(stored: Array, new: Array) -> jax.ShapeDtypeStruct:
      is_float = jnp.issubdtype(stored.dtype, jnp.floating)
      fits = is_float or not jnp.issubdtype(new.dtype, jnp.floating)
      return jax.ShapeDtypeStruct(
        (batch_size, *stored.shape[1:]), (new if fits else stored).dtype)

    expected = jax.tree.map(expect, state.storage, rows)
    if difference := trees.tree_difference(rows, expected):
      raise ValueError(
        f"{difference}; add transitions [B, ...] like the example that the "
        "buffer was made of, which is one transition without the axis B.")
    if batch_size > capacity:
      raise ValueError(
        f"replay_capacity {capacity} is less than the {batch_size} transitions "
        "that are added at once; raise it, or add fewer.")
    return batch_size

  def add(state: ReplayState, transitions: Tree) -> ReplayState:
    batch_size = count(state, transitions)
    indices = (state.position + jnp.arange(batch_size)) % capacity
    return write(state, transitions, indices, batch_size, "promise_in_bounds")

  def add_where(
    state: ReplayState, transitions: Tree, where: Array
  ) -> ReplayState:
    batch_size = count(state, transitions)
    turns = jnp.cumsum(where, dtype=jnp.int32)
    # The others get distinct indices beyond the end, where writes are dropped.
    indices = jnp.where(
      where, (state.position + turns - 1) % capacity,
      capacity + jnp.arange(batch_size))
    return write(state, transitions, indices, turns[-1], "drop")

  def draw(state: ReplayState, key: Key, shape: tuple[int, ...]) -> Array:
    return jax.random.randint(key, shape, 0, state.size)

  def sample(state: ReplayState, key: Key, shape: tuple[int, ...]) -> Tree:
    return gather_from_replay(state.storage, draw(state, key, shape))

  def later(state: ReplayState, places: Array, n: int) -> tuple[Array, Array]:
    num_later = (state.position - 1 - places) % capacity
    return (places + n) % capacity, num_later >= n

  def can_sample(state: ReplayState, n: int) -> Array:
    return state.size >= n

  return ReplayBuffer(init, add, sample, can_sample, add_where, draw, later)


def gather_from_replay(storage: Tree, places: Array) -> Tree:
  """Gathers from the storage of a buffer, or a part of it, at places [...]."""
  return jax.tree.map(
    lambda stored: stored.at[places].get(mode="promise_in_bounds"), storage)
