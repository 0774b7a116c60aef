"""Tests of repertoires without cells."""

import jax
import jax.numpy as jnp
import numpy as np

from qdrl_haiku import map_elites

_PLACES = 12
_NONE = map_elites.Unstructured(_PLACES, 2)
_GRID = map_elites.Grid((2, 2), (-2.0, -2.0), (2.0, 2.0))
_CONTAINER = map_elites.dominated_novelty(_NONE)


def _empty(container=_CONTAINER):
  return container.init(jnp.zeros(2), {})


@jax.jit
def _add(repertoire, *batch):
  return _CONTAINER.add(repertoire, map_elites.Evaluated(*batch, {}))


def _batch(seed):
  """Individuals whose genotype is their descriptor."""
  rng = np.random.default_rng(seed)
  descriptors = rng.uniform(-3, 3, (16, 2)).astype(np.float32)
  return descriptors.copy(), np.float32(rng.normal(size=16)), descriptors


def _contents(repertoire):
  rows = np.column_stack([repertoire.fitness, repertoire.descriptors])
  rows = rows[np.asarray(repertoire.occupied)]
  return rows[np.lexsort(rows.T)]


def _survivors(pool, num_places, k):
  """The paper's algorithm, one individual after the other, in float64."""
  worth = []
  for fitness, *point in pool:
    distances = sorted(
      np.linalg.norm(np.subtract(point, other))
      for other_fitness, *other in pool
      if other_fitness > fitness)
    worth.append(np.mean(distances[:k]) if distances else np.inf)
  return pool[np.argsort(-np.array(worth), kind="stable")[:num_places]]


def test_those_stay_that_the_papers_algorithm_keeps():
  repertoire, pool = _empty(), np.zeros((0, 3))
  for seed in range(4):
    genotypes, fitness, descriptors = _batch(seed)
    repertoire = _add(repertoire, genotypes, fitness, descriptors)
    new = np.column_stack([fitness, descriptors]).astype(np.float64)
    pool = _survivors(np.concatenate([pool, new]), _PLACES, k=3)
    expected = pool[np.lexsort(pool.T)]
    np.testing.assert_array_equal(_contents(repertoire), expected)
    np.testing.assert_array_equal(repertoire.genotypes, repertoire.descriptors)


def test_an_incumbent_wins_a_tie_and_keeps_its_place():
  genotypes, fitness, descriptors = _batch(0)
  first = _add(_empty(), genotypes, fitness, descriptors)
  again = _add(first, genotypes + 1, fitness, descriptors)
  jax.tree.map(np.testing.assert_array_equal, again, first)
  later = _add(first, *_batch(3))
  stays = np.isin(later.fitness, first.fitness)
  assert 0 < stays.sum() < _PLACES
  np.testing.assert_array_equal(later.genotypes[stays], first.genotypes[stays])


def test_metrics_are_told_in_the_cells_of_a_grid():
  batch = (
    np.zeros((4, 2), np.float32),
    np.array([1.0, 2.0, 3.0, 5.0], np.float32),
    np.array([[-1, -1], [-1.5, -1], [1, 1], [9, 1]], np.float32))

  def measure(tessellation):
    container = map_elites.dominated_novelty(tessellation, num_neighbors=2)
    repertoire = jax.jit(container.add)(
      _empty(container), map_elites.Evaluated(*batch, {}))
    told = jax.jit(map_elites.metrics)(repertoire, 1.0)
    return {name: float(x) for name, x in told.items()}

  assert measure(map_elites.Unstructured(_PLACES, 2, _GRID)) == {
    "qd/qd_score": 9, "qd/coverage": 50, "qd/max_fitness": 5,
    "qd/num_outside": 1, "qd/num_elites": 4}
  told = measure(_NONE)
  assert told["qd/qd_score"] == 15 and told["qd/num_elites"] == 4
  np.testing.assert_allclose(told["qd/coverage"], 100 * 4 / _PLACES)
