"""Tests of elites that keep a distance from each other."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qdrl_haiku import map_elites

_PLACES = 12
_CONTAINER = map_elites.threshold_archive(map_elites.Unstructured(_PLACES, 2))
_TARGET, _GAIN = 0.9 * _PLACES, 0.1


_compiled = jax.jit(
  lambda state, batch: _CONTAINER.add(state, map_elites.Evaluated(*batch, {})))


def _add(state, *batch):
  # What is NaN is left out.
  return _compiled(state, [
    np.pad(x, [(0, 16 - len(x))] + [(0, 0)] * (x.ndim - 1),
           constant_values=np.nan) for x in batch])


def _empty(threshold=0.0):
  state = _CONTAINER.init(jnp.zeros(2), {})
  return state._replace(threshold=jnp.float32(threshold))


def _batch(seed, size=6):
  """Individuals whose genotype is their descriptor."""
  rng = np.random.default_rng(seed)
  points = rng.uniform(-3, 3, (size, 2)).astype(np.float32)
  return points.copy(), np.float32(rng.normal(size=size)), points


def _contents(state):
  known = state.repertoire
  rows = np.column_stack([known.fitness, known.descriptors, known.genotypes])
  rows = rows[np.asarray(known.occupied)]
  return rows[np.lexsort(rows.T)]


def _added(elites, threshold, fitness, points):
  """One newcomer after the other, in float64; elites are (fitness, point)."""
  for i in np.argsort(-fitness):
    distances = [np.linalg.norm(points[i] - point) for _, point in elites]
    order = np.argsort(distances)
    if not elites or distances[order[0]] > threshold:
      if len(elites) < _PLACES:
        elites = [*elites, (fitness[i], points[i])]
      continue
    others = [distances[j] for j in order[1:]]
    nearest = order[0]
    if fitness[i] > elites[nearest][0] and min(others, default=9e9) > threshold:
      elites = [
        x if j != nearest else (fitness[i], points[i])
        for j, x in enumerate(elites)]
  return elites


def test_a_plain_loop_keeps_the_same_elites_at_the_same_distance():
  state, elites, threshold = _empty(1.2), [], 1.2
  num_left = 0
  for seed in range(12):
    genotypes, fitness, points = _batch(seed)
    state = _add(state, genotypes, fitness, points)
    elites = _added(
      elites, threshold, np.float64(fitness), np.float64(points))
    excess = len(elites) / _TARGET - 1
    threshold *= 1 + (excess if excess > 0 else _GAIN * excess)
    if len(elites) > _TARGET:  # All anew, the fittest first.
      known = map(np.array, zip(*elites, strict=True))
      num_left -= len(elites)
      elites = _added([], threshold, *known)
      num_left += len(elites)
    rows = np.array([[x, *point, *point] for x, point in elites])
    np.testing.assert_allclose(
      _contents(state), rows[np.lexsort(rows.T)], rtol=1e-6)
    assert float(state.threshold) == pytest.approx(threshold, rel=1e-5)
  assert num_left < 0 and len(elites) > 8


def test_a_newcomer_near_two_elites_replaces_neither():
  line = np.array([[0, 0], [1, 0]], np.float32)
  state = _add(_empty(0.7), line, np.float32([1, 2]), line)

  def after(x, fitness):
    point = np.array([[x, 0]], np.float32)
    return sorted(_contents(
      _add(state._replace(threshold=jnp.float32(0.7)), point,
           np.float32([fitness]), point))[:, :2].tolist())

  assert after(0.5, 9) == [[1, 0], [2, 1]]
  assert after(-0.5, 9) == [[2, 1], [9, -0.5]]
  assert after(-0.5, 1) == [[1, 0], [2, 1]]  # An incumbent wins a tie.
  assert after(-0.8, 0) == [[0, np.float32(-0.8)], [1, 0], [2, 1]]


@pytest.mark.parametrize("width", [3, 7])
def test_the_first_distance_is_half_of_that_of_neighbours(width):
  points = np.stack(np.meshgrid(np.arange(width), np.arange(2.0)), -1)
  points = points.reshape(-1, 2).astype(np.float32)
  fitness = np.arange(2 * width, dtype=np.float32)
  state = _add(_empty(), points, fitness, points)
  # All are 1 apart; if there are more than 10.8, so many would be farther.
  expected = 0.5 * max(2 * width / _TARGET, 1) ** 0.5
  size = min(2 * width, _PLACES)
  assert state.repertoire.occupied.sum() == size
  excess = size / _TARGET - 1
  expected *= 1 + (excess if excess > 0 else _GAIN * excess)
  np.testing.assert_allclose(state.threshold, expected, rtol=1e-6)


def test_edges():
  same = np.zeros((4, 2), np.float32)
  fitness = np.float32([1, 3, 2, 3])
  state = _add(_empty(), same, fitness, same)
  # Of equals one stays, and there is no distance yet.
  assert _contents(state)[:, 0].tolist() == [3] and state.threshold == 0
  one = _add(_empty(), same[:1], fitness[:1], same[:1])
  assert one.repertoire.occupied.sum() == 1 and one.threshold == 0
  assert _add(one, *_batch(0)).threshold > 0
  nothing = map_elites.Evaluated(
    jnp.zeros((0, 2)), jnp.zeros(0), jnp.zeros((0, 2)), {})
  assert _CONTAINER.add(state, nothing) is state
  # A full one takes no more, and grows sparse.
  full = _add(_empty(1e-3), *_batch(1, _PLACES))
  assert full.repertoire.occupied.sum() == _PLACES
  more = _add(full, *_batch(2, 3))
  old = np.isin(_contents(more)[:, 0], _contents(full)[:, 0])
  assert old.all() and more.threshold > full.threshold


def test_the_number_of_elites_stays_near_its_target():
  container = map_elites.threshold_archive(map_elites.Unstructured(100, 2))

  def generation(state, key):
    keys = jax.random.split(key)
    # A space that grows while it's filled.
    width = 1 + state.repertoire.occupied.sum() / 10
    points = width * jax.random.uniform(keys[0], (32, 2))
    fitness = jax.random.normal(keys[1], (32,))
    state = container.add(
      state, map_elites.Evaluated(points, fitness, points, {}))
    return state, state.repertoire.occupied.sum()

  _, sizes = jax.lax.scan(
    generation, container.init(jnp.zeros(2), {}),
    jax.random.split(jax.random.key(0), 120))
  assert sizes.max() == 100
  # Where l grows, many neighbours may be just too near.
  later = np.asarray(sizes[60:])
  assert later.min() > 70 and abs(later.mean() - 90) < 4, sizes
