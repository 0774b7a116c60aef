"""A uniform replay buffer for one agent, of any pytree.

The storage is written by index and never moved, so that adding costs what is
added, whatever the capacity. A population's buffers are `jax.vmap` of one.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from qdrl_haiku import trees
from qdrl_haiku.types import Array, Key, Transition, Tree


class ReplayState(NamedTuple):
  """Holds the contents of a buffer."""

  storage: Tree  # Of the example's structure, leaves [capacity, ...].
  position: Array  # int32 [], where the next transition goes.
  size: Array  # int32 [], how many transitions there are.
  frames: Tree = ()  # `Frames`, if observations are stored once.

  @property
  def held(self) -> Array:
    """Counts the latest transitions that may be sampled, int32 []."""
    return self.frames.held if self.frames else self.size


class Frames(NamedTuple):
  """Holds observations, each once, which transitions have by number.

  Numbers are modulo four times the ring's capacity, so that a frame's age, how
  many were added since, is known until it is overwritten, and a while after.
  """

  ring: ReplayState
  number: Array  # int32 [], of the next frame.
  held: Array  # int32 [], of how many of the latest transitions all is there.
  latest: Array  # int32 [E], the frame that each environment has come to.


class ReplayBuffer(NamedTuple):
  """A replay buffer as pure functions.

  Attributes:
    init: (example) -> ReplayState; the example is one transition, or its
      shapes and dtypes, without a batch axis.
    add: (state, transitions [B, ...]) -> ReplayState; the oldest are
      overwritten when the buffer is full. B is at most the capacity. Other
      shapes, and floats for an example of integers, are refused.
    can_sample: (state, n) -> bool [], whether at least n are there.
    add_where: (state, transitions [B, ...], where bool [B]) -> ReplayState.
    draw: (state, key, shape) -> int32 [*shape], the places from which `sample`
      gathers with that key. The buffer must not be empty.
    later: (state, places int32 [...], n) -> (int32 [...], bool [...]): the
      places of the transitions that were added n after those at `places`, and
      whether there are any.
    show: (state, rows of the storage) -> transitions, with observations.
  """

  init: Callable[[Tree], ReplayState]
  add: Callable[[ReplayState, Tree], ReplayState]
  can_sample: Callable[[ReplayState, int], Array]
  add_where: Callable[[ReplayState, Tree, Array], ReplayState]
  draw: Callable[[ReplayState, Key, tuple[int, ...]], Array]
  later: Callable[[ReplayState, Array, int], tuple[Array, Array]]
  show: Callable[[ReplayState, Tree], Tree] = lambda state, rows: rows

  def sample(
    self, state: ReplayState, key: Key, shape: tuple[int, ...]
  ) -> Tree:
    """Draws transitions [*shape, ...] uniformly, with replacement.

    Args:
      state: of a buffer that isn't empty.
      key: consumed.
      shape: of what is drawn.
    """
    places = self.draw(state, key, shape)
    return self.show(state, gather_from_replay(state.storage, places))


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
    everything = jnp.ones(count(state, transitions), bool)
    return add_where(state, transitions, everything)

  def add_where(
    state: ReplayState, transitions: Tree, where: Array
  ) -> ReplayState:
    batch_size = count(state, transitions)
    turns = jnp.cumsum(where, dtype=jnp.int32)
    # The others get distinct indices beyond the end, where writes are dropped.
    indices = jnp.where(
      where, (state.position + turns - 1) % capacity,
      capacity + jnp.arange(batch_size))
    num_added = turns[-1]
    storage = jax.tree.map(
      lambda stored, new: stored.at[indices].set(
        new.astype(stored.dtype), unique_indices=True, mode="drop"),
      state.storage, transitions)
    return state._replace(
      storage=storage, position=(state.position + num_added) % capacity,
      size=jnp.minimum(state.size + num_added, capacity))

  def draw(state: ReplayState, key: Key, shape: tuple[int, ...]) -> Array:
    return jax.random.randint(key, shape, 0, state.size)

  def later(state: ReplayState, places: Array, n: int) -> tuple[Array, Array]:
    num_later = (state.position - 1 - places) % capacity
    return (places + n) % capacity, num_later >= n

  def can_sample(state: ReplayState, n: int) -> Array:
    return state.size >= n

  return ReplayBuffer(init, add, can_sample, add_where, draw, later)


def with_frames(capacity: int, num_envs: int) -> ReplayBuffer:
  """Returns a buffer of `Transition`s that stores observations once.

  It samples what `uniform` would: an observation is stored where it isn't the
  one that the environment's step before has led to, whatever came in between.
  The end of an episode takes two frames, and there are frames for `capacity`
  steps without an end: what has lost its own is no longer sampled.

  Args:
    capacity: the most transitions that it holds, at least twice as many as are
      added at once.
    num_envs: E; those that are added are [T * E], E of each step in turn.
  """
  num_frames = capacity + 2 * num_envs
  plain, ring = uniform(capacity), uniform(num_frames)

  def init(example: Transition) -> ReplayState:
    zero = jnp.zeros((), jnp.int32)
    stored = example._replace(observation=zero, next_observation=zero)
    return plain.init(stored)._replace(frames=Frames(
      ring.init(example.observation), zero, jnp.copy(zero),
      jnp.zeros(num_envs, jnp.int32)))

  def add_where(
    state: ReplayState, transitions: Transition, where: Array
  ) -> ReplayState:
    frames, number, held, latest = state.frames
    before, after = transitions.observation, transitions.next_observation
    is_known = jnp.concatenate([
      jnp.broadcast_to(number > 0, latest.shape), where[:-num_envs]])
    for stored, x, y in zip(
      *map(jax.tree.leaves, (frames.storage, before, after)), strict=True
    ):
      led_to = jnp.concatenate([stored[latest % num_frames], y[:-num_envs]])
      is_known &= jnp.all(led_to == x, axis=range(1, x.ndim))
    is_added = jnp.stack([where & ~is_known, where], axis=1)
    # Of what is left out: the number of the last one that was added at all.
    numbers = number - 1 + jnp.cumsum(is_added, dtype=jnp.int32)
    first, last = numbers.reshape(is_added.shape).T
    first = jnp.where(
      is_known, jnp.concatenate([latest, last[:-num_envs]]), first)
    both = jax.tree.map(lambda *x: jnp.stack(x, axis=1), before, after)
    frames = ring.add_where(
      frames, jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), both),
      is_added.ravel())
    first, last, number = (
      x % (4 * num_frames) for x in (first, last, numbers[-1] + 1))
    state = plain.add_where(
      state, transitions._replace(observation=first, next_observation=last),
      where)
    # A frame that was overwritten is the first of one transition, which is at
    # most E transitions away from its place in the order of frames.
    held = jnp.minimum(held + jnp.sum(where, dtype=jnp.int32), capacity)
    turns = jnp.arange(is_added.size + num_envs)
    oldest = state.storage.observation[
      (state.position - held + turns) % capacity]
    is_lost = (number - oldest) % (4 * num_frames) > num_frames
    held -= jnp.max(jnp.where(is_lost & (turns < held), turns + 1, 0))
    return state._replace(
      frames=Frames(frames, number, held, last[-num_envs:]))

  def draw(state: ReplayState, key: Key, shape: tuple[int, ...]) -> Array:
    turns = jax.random.randint(key, shape, 0, state.held)
    return (state.position - state.held + turns) % capacity

  def show(state: ReplayState, rows: Transition) -> Transition:
    first, last = (
      gather_from_replay(state.frames.ring.storage, x % num_frames)
      for x in (rows.observation, rows.next_observation))
    return rows._replace(observation=first, next_observation=last)

  return plain._replace(
    init=init, add_where=add_where, draw=draw, show=show,
    add=lambda state, transitions: add_where(
      state, transitions, jnp.ones(transitions.reward.shape, bool)))


def gather_from_replay(storage: Tree, places: Array) -> Tree:
  """Gathers from the storage of a buffer, or a part of it, at places [...]."""
  return jax.tree.map(
    lambda stored: stored.at[places].get(mode="promise_in_bounds"), storage)
