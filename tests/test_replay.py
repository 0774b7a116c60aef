"""Tests of the replay buffer."""

import collections

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from qdrl_haiku import replay, types

_CAPACITY = 7
_BUFFER = replay.uniform(_CAPACITY)
_ADD = jax.jit(_BUFFER.add)
_SAMPLE = jax.jit(_BUFFER.sample, static_argnums=2)


def _numbers(start, num):
  return jnp.arange(start, start + num, dtype=jnp.int32)


def _filled(num, buffer=_BUFFER):
  """A buffer of one integer per row, that `num` have gone through."""
  state = buffer.init(jnp.zeros((), jnp.int32))
  for i in range(num):
    state = _ADD(state, _numbers(i, 1))
  return state


def _transitions(shape, observation_size=5, action_size=2):
  return types.Transition(
    observation=jnp.ones((*shape, observation_size)),
    action=jnp.ones((*shape, action_size)), reward=jnp.ones(shape),
    discount=jnp.ones(shape),
    next_observation=jnp.ones((*shape, observation_size)), extras={})


def test_any_pytree_comes_back_as_it_went_in():
  example = {
    "image": np.zeros((2, 3), np.uint8),
    "nested": (np.zeros((), bool), [np.zeros(4, np.float16)])}
  row = {
    "image": np.arange(6, dtype=np.uint8).reshape(2, 3) + 250,
    "nested": (np.ones((), bool), [np.full(4, 0.5, np.float16)])}
  state = _ADD(_BUFFER.init(example), jax.tree.map(lambda x: x[None], row))
  sample = _SAMPLE(state, jax.random.key(0), ())
  assert jax.tree.structure(sample) == jax.tree.structure(row)
  for actual, expected in zip(
    jax.tree.leaves(sample), jax.tree.leaves(row), strict=True
  ):
    assert actual.dtype == expected.dtype
    np.testing.assert_array_equal(actual, expected)


def test_a_full_buffer_forgets_the_oldest():
  state = _BUFFER.init(jnp.zeros((), jnp.int32))
  expected = collections.deque(maxlen=_CAPACITY)
  start = 0
  for num in (3, 3, 3, 7, 1, 5, 1, 6):
    state = _ADD(state, _numbers(start, num))
    expected.extend(range(start, start + num))
    start += num
    assert int(state.size) == len(expected)
    # From the oldest on: as a deque has it.
    first = (int(state.position) - int(state.size)) % _CAPACITY
    rows = np.roll(np.asarray(state.storage), -first)[: int(state.size)]
    np.testing.assert_array_equal(rows, expected)


def test_samples_are_uniform_among_the_rows_that_are_stored():
  for num in (2, 12):
    sample = np.asarray(_SAMPLE(_filled(num), jax.random.key(3), (20_000,)))
    rows, counts = np.unique(sample, return_counts=True)
    assert rows.tolist() == list(range(max(0, num - _CAPACITY), num))
    assert stats.chisquare(counts).pvalue > 0.01


def test_can_sample_from_the_number_stored():
  can_sample = jax.jit(_BUFFER.can_sample)
  state = _filled(3)
  assert not can_sample(_filled(0), 1)
  assert can_sample(state, 3)
  assert not can_sample(state, 4)
  # What has been overwritten is not there any more.
  assert not can_sample(_filled(10), 8)


def test_more_rows_than_the_capacity_are_refused():
  with pytest.raises(ValueError, match="capacity 7 is less than the 8 tr"):
    _BUFFER.add(_filled(0), _numbers(0, 8))


@pytest.mark.parametrize(("change", "says"), [
  (lambda x: jax.tree.map(lambda leaf: leaf[0], x), "observation is float32"),
  (lambda x: x._replace(observation=x.observation[:, :1]), r"\(3, 1\), not"),
  (lambda x: x._replace(reward=x.reward[0]), "reward is float32()"),
  (lambda x: x._replace(discount=x.discount / 2), "discount is .*, not int32")])
def test_what_would_be_broadcast_or_cut_is_refused(change, says):
  buffer = replay.uniform(_CAPACITY)
  rows = _transitions((3,))._replace(discount=jnp.ones(3, jnp.int32))
  state = buffer.init(jax.tree.map(lambda x: x[0], rows))
  assert buffer.add(state, rows).size == 3
  with pytest.raises(ValueError, match=says):
    buffer.add(state, change(rows))


def test_adding_in_a_scan_works_in_place():
  """With a donated buffer the program needs memory only for what it adds."""
  buffer = replay.uniform(10_000)
  state = buffer.init(_transitions(()))
  size = sum(x.nbytes for x in jax.tree.leaves(state))

  def fill(state, rows):
    return jax.lax.scan(lambda s, r: (buffer.add(s, r), None), state, rows)[0]

  compiled = (
    jax.jit(fill, donate_argnums=0).lower(state, _transitions((6, 8))).compile()
  )
  memory = compiled.memory_analysis()
  assert memory.alias_size_in_bytes >= size
  assert memory.temp_size_in_bytes < size / 20
  pointers = [x.unsafe_buffer_pointer() for x in jax.tree.leaves(state.storage)]
  state = compiled(state, _transitions((6, 8)))
  assert int(state.size) == 48
  assert pointers == [
    x.unsafe_buffer_pointer() for x in jax.tree.leaves(state.storage)]


def test_rows_of_which_some_are_left_out_follow_each_other():
  buffer = replay.uniform(5)
  add = jax.jit(buffer.add_where)
  state = buffer.init(jnp.zeros(()))
  where = jnp.array([True, False, True, True])
  state = add(state, jnp.arange(4.0), where)
  np.testing.assert_array_equal(state.storage, [0, 2, 3, 0, 0])
  assert (state.position, state.size) == (3, 3)
  # The oldest is overwritten, and nothing else.
  state = add(state, jnp.arange(10.0, 14.0), where)
  np.testing.assert_array_equal(state.storage, [13, 2, 3, 10, 12])
  assert (state.position, state.size) == (1, 5)
  again = add(state, jnp.arange(4.0), jnp.zeros(4, bool))
  np.testing.assert_array_equal(again.storage, state.storage)
  assert (again.position, again.size) == (1, 5)
