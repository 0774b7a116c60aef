"""Tests of the replay that stores observations once, beside one of both."""

import types as python_types

import jax
import numpy as np
import pytest

from qdrl_haiku import replay, types
from qdrl_haiku.training import n_step, order
from tests.training import common

_E, _T, _CAPACITY, _STEPS = 3, 2, 32, 60
_CONFIG = common.setup(num_envs=_E, replay_capacity=_CAPACITY, n_step=3).config


class _Kind:
  """A buffer, and what is compiled of it."""

  def __init__(self, buffer):
    self.init, self.draw = buffer.init, buffer.draw
    setup = python_types.SimpleNamespace(
      buffer=buffer, config=_CONFIG, learner=common.quadratic_learner())
    self.add = jax.jit(lambda *args: order.add_in_order(setup, *args))
    self.add_where = jax.jit(buffer.add_where)
    self.windows = jax.jit(lambda state, key: (
      n_step.sample_n_step(setup, state, key, (200,)),
      order.sample_sequences(setup, state, key, (50, 4))))
    self.shown = jax.jit(lambda state: buffer.show(state, state.storage))


_PLAIN = _Kind(replay.uniform(_CAPACITY))
_ONCE = _Kind(replay.with_frames(_CAPACITY, _E))


def _seen(numbers):
  """Observations [T, E] of numbers."""
  image = numbers[..., None, None, None] + np.zeros((9, 9, 1))
  return {
    "image": image.astype(np.uint8),
    "speed": numbers[..., None].astype(np.float32)}


def _additions(ends, restarts, left_out):
  """Transitions [T * E] of episodes that end, or break off in silence."""
  rng = np.random.default_rng(0)
  number, steps = np.arange(_E, dtype=float), []
  for t in range(_STEPS):
    is_end = rng.uniform(size=_E) < ends
    jumps = is_end | (t % _T == 1 and rng.uniform() < restarts)
    steps.append((number, number + _E, is_end))
    number = number + np.where(jumps, 100 + 2 * _E, _E)
  before, after, is_end = map(np.stack, zip(*steps, strict=True))
  reward = rng.normal(size=is_end.shape).astype(np.float32)
  history = types.Transition(
    _seen(before), reward[..., None], reward, np.ones_like(reward),
    _seen(after), {"truncation": is_end.astype(np.float32)})
  where = rng.uniform(size=reward.shape) >= left_out
  for begin in range(0, _STEPS, _T):
    yield jax.tree.map(
      lambda x: x[begin : begin + _T].reshape(-1, *x.shape[2:]),  # noqa: B023
      (history, where))


def _empty():
  rows, _ = next(_additions(0, 0, 0))
  example = jax.tree.map(lambda x: x[0], rows)
  return _PLAIN.init(example), _ONCE.init(example)


@pytest.mark.parametrize(("ends", "restarts", "left_out"), [
  (0.0, 0.0, 0.0), (0.1, 0.2, 0.2), (1.0, 0.0, 0.0), (0.3, 0.0, 0.7)])
def test_places_have_the_transitions_of_a_replay_that_stores_both(
  ends, restarts, left_out
):
  plain, once = _empty()
  for rows in _additions(ends, restarts, left_out):
    plain, once = _PLAIN.add_where(plain, *rows), _ONCE.add_where(once, *rows)
    stored, shown, state = jax.device_get((plain, _ONCE.shown(once), once))
    assert (state.position, state.size) == (stored.position, stored.size)
    held = state.held
    places = (state.position - held + np.arange(held)) % _CAPACITY
    jax.tree.map(
      lambda x, y: np.testing.assert_array_equal(x[places], y[places]),  # noqa: B023
      shown, stored.storage)
    # All are held, but for what the frames of episodes' ends take up.
    most = _CAPACITY if ends == 0 and not left_out else _CAPACITY // 2 - _E
    assert held >= min(state.size, most)
  drawn = _ONCE.draw(once, jax.random.key(0), (1000,))
  assert set(drawn.tolist()) == set(places.tolist())


def test_windows_and_sequences_are_those_of_a_replay_that_stores_both():
  plain, once = _empty()
  for i, rows in enumerate(_additions(0.1, 0.0, 0.1)):
    plain, once = _PLAIN.add(plain, *rows), _ONCE.add(once, *rows)
    if once.held < once.size:
      break
    key = jax.random.key(i)
    found, expected = _ONCE.windows(once, key), _PLAIN.windows(plain, key)
    common.assert_bits_equal(found, expected)
  assert i > 3


def test_it_takes_half_of_the_memory():
  image, number = np.zeros((84, 84, 4), np.uint8), np.zeros((), np.float32)
  example = types.Transition(image, number, number, number, image, {})
  once, both = (
    sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(
      jax.eval_shape(buffer.init, example)))
    for buffer in (replay.with_frames(10_000, 8), replay.uniform(10_000)))
  assert 0.5 < once / both < 0.505
