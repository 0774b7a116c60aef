"""Tests of the emitter of ASCII-MAP-Elites."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qdrl_haiku import map_elites, types
from qdrl_haiku.map_elites.emitters.ascii import record_episodes

_T = 3


def _episodes(observation, to_go, length):
  return map_elites.Episodes(observation, None, to_go, jnp.asarray(length))


def _evaluated(numbers, lengths, rewards=None):
  """Individuals of one episode, whose number is observed, rewarded, a cell."""
  numbers = jnp.asarray(numbers, jnp.float32)
  steps = jnp.ones((len(numbers), 1, _T))
  seen, time = numbers[:, None, None] * steps, steps.cumsum(2)
  transitions = types.Transition(
    jnp.stack([seen, time], axis=-1), time[..., None],
    seen if rewards is None else rewards, steps, None, {})
  return map_elites.Evaluated(
    numbers[:, None], numbers, numbers[:, None],
    {"transitions": transitions, "lengths": jnp.asarray(lengths)[:, None]})


def test_weights_are_what_the_other_gained_more_where_both_saw_the_same():
  rng = np.random.default_rng(0)
  x, y = rng.normal(size=(2, 4, _T, 2))
  x[0, 1] = 0  # Nothing is like it.
  own, others = rng.normal(size=(2, 4, _T))
  length = np.array([3, 2, 1, 0])
  dot, norms = (x * y).sum(-1), np.linalg.norm([x, y], axis=-1).prod(0)
  cosine = np.divide(dot, norms, out=np.zeros_like(dot), where=norms > 0)
  expected = cosine * (others - own) * (np.arange(_T) < length[:, None])
  # Of a tree all numbers are compared, whatever their shapes.
  trees = [{"a": z[..., :1], "b": z[..., 1:, None]} for z in (x, y)]
  for first, second in ((x, y), trees):
    found = map_elites.ascii_weights(
      _episodes(first, own, length), _episodes(second, others, length))
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=1e-7)
  assert found[0, 1] == 0


def test_the_loss_is_that_of_the_paper():
  rng = np.random.default_rng(1)
  action, taken = rng.uniform(-1, 1, (2, 50, 3))
  weights = rng.normal(size=50)
  ratio = np.exp(-((taken - action)**2).sum(-1) / (2 * 0.8**2))
  clipped = np.maximum(ratio, 0.8)
  assert (ratio < 0.8).any() and (ratio > 0.8).any()
  found = map_elites.ascii_loss(action, taken, weights, 0.8, 0.2)
  np.testing.assert_allclose(
    found, -np.minimum(ratio * weights, clipped * weights).mean(), rtol=1e-5)


def test_an_episode_is_recorded_up_to_its_end():
  found = jax.jit(record_episodes)(_evaluated(
    [1, 2, 3, 4], [3, 2, 0, 3],
    jnp.array([[[1.0, 2, 4]], [[1, 1, 100]], [[1, 1, 1]], [[1, jnp.inf, 1]]])),
    0.5)
  np.testing.assert_array_equal(
    found.to_go, [[3, 4, 4], [1.5, 1, 0], [0, 0, 0], [0, 0, 0]])
  for times in (found.action[..., 0], found.observation[..., 1]):
    np.testing.assert_array_equal(
      times, [[1, 2, 3], [1, 2, 2], [1, 1, 1], [0, 0, 0]])
  np.testing.assert_array_equal(found.length, [3, 2, 0, 0])


def _started(numbers, lengths, crossed, varied, more=None):
  """An emitter, whose offspring tell parent and other, after it has begun."""
  example = jax.eval_shape(
    lambda: jax.tree.map(
      lambda x: x[0], record_episodes(_evaluated([0.0], [3]), 1.0)))
  emitter = map_elites.ascii_emitter(
    lambda parents, others, weights: (
      parents + 100 * others.observation[:, 0, :1] + 1e4 * weights[:, :1]),
    lambda key, x, y: -x, example, discount=1.0, gradient_batch_size=crossed,
    variation_batch_size=varied)
  if more is not None:
    emitter = map_elites.multi_emitter({"ga": more, "ascii": emitter})
  container = map_elites.cells(map_elites.Grid((8,), (0.0,), (8.0,)))
  return emitter, container, *map_elites.init(
    emitter, container, _evaluated(numbers, lengths), jax.random.key(0))


@pytest.mark.parametrize("sizes", [(30, 10), (0, 10), (10, 0)])
def test_parents_are_compared_with_episodes_of_their_own(sizes):
  # The first is worse than its neighbour in its cell, the last has no episode.
  emitter, container, repertoire, state = _started(
    [1.25, 1.5, 3.5, 6.5], [3, 3, 3, 0], *sizes)
  individuals, _, _ = map_elites.ask(
    emitter, container, repertoire, state, jax.random.key(1))
  crossed, varied = np.split(np.asarray(individuals)[:, 0], sizes[:1])
  assert set(-varied) <= {1.5, 3.5, 6.5}
  expected = []
  for x in (1.5, 3.5, 6.5):
    for y in (1.25, 1.5, 3.5):
      cosine = (x * y + 1) / np.sqrt((x**2 + 1) * (y**2 + 1))
      gained = 3 * y - 3 * x * (x != 6.5)
      expected.append(x + 100 * y + 1e4 * cosine * gained)
  near = np.abs(crossed[:, None] - np.array(expected)) < 0.1
  assert near.any(1).all()
  assert sizes[0] != 30 or near.any(0).sum() >= 8


def test_the_last_generation_takes_the_place_of_the_one_before():
  emitter, _, repertoire, state = _started([1.5, 2.5], [3, 3], 2, 2)
  np.testing.assert_array_equal(
    state.observation[:, 0, 0], [1.5, 2.5, 1.5, 2.5])
  told = emitter.tell(
    state, repertoire, _evaluated([5.0, 6.0, jnp.nan, 7.0], [0, 3, 3, 2]), None)
  np.testing.assert_array_equal(told.observation[:, 0, 0], [6, 7, 6, 7])
  np.testing.assert_array_equal(told.length, [3, 2, 3, 2])
  # Of no episode at all nothing is learned.
  none = emitter.tell(state, repertoire, _evaluated([5.0] * 4, [0] * 4), None)
  np.testing.assert_array_equal(none.length, 0)


def test_elites_that_others_made_have_episodes_too():
  emitter, container, repertoire, state = _started(
    [1.5, 2.5], [3, 3], 1, 1, map_elites.genetic_emitter(None, 3))
  repertoire, state = map_elites.add_and_tell(
    emitter, container, repertoire, state,
    _evaluated([0.5, 3.5, 4.5, 5.5, 6.5], [3] * 5), jax.random.key(0))
  kept = container.show(repertoire).extras["episode"]
  assert kept.action is None
  np.testing.assert_array_equal(
    kept.observation[:7, 0, 0], np.arange(7) + 0.5)
  # It is told of its own alone.
  np.testing.assert_array_equal(
    state.states[1].observation[:, 0, 0], [5.5, 6.5])
