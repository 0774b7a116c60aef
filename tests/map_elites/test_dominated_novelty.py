"""Tests of repertoires without cells."""

import jax
import jax.numpy as jnp
import numpy as np

from qdrl_haiku import map_elites
from tests.trials import fittest

_PLACES = 12
_NONE = map_elites.Unstructured(_PLACES, 2)
_GRID = map_elites.Grid((2, 2), (-2.0, -2.0), (2.0, 2.0))
_ADD = jax.jit(map_elites.Repertoire.add)


def _empty(tessellation=_NONE):
  return map_elites.Repertoire.init(jnp.zeros(2), tessellation)


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
    repertoire = _ADD(repertoire, genotypes, fitness, descriptors)
    new = np.column_stack([fitness, descriptors]).astype(np.float64)
    pool = _survivors(np.concatenate([pool, new]), _PLACES, k=3)
    expected = pool[np.lexsort(pool.T)]
    np.testing.assert_array_equal(_contents(repertoire), expected)
    np.testing.assert_array_equal(repertoire.genotypes, repertoire.descriptors)


def test_order_never_matters():
  genotypes, fitness, descriptors = _batch(0)
  # Ties of all kinds: of fitness, of descriptors, of both, and of all.
  fitness[4:8] = fitness[0]
  descriptors[6:10] = descriptors[1]
  fitness[10:14], descriptors[10:14] = 2.0, 1.0
  genotypes[13] = genotypes[12]
  first = _ADD(_empty(), *_batch(1))
  expected = None
  for seed in range(6):
    order = np.random.default_rng(seed).permutation(16)
    found = _ADD(first, genotypes[order], fitness[order], descriptors[order])
    expected = expected or found
    jax.tree.map(np.testing.assert_array_equal, found, expected)


def test_an_incumbent_wins_a_tie_and_keeps_its_place():
  genotypes, fitness, descriptors = _batch(0)
  first = _ADD(_empty(), genotypes, fitness, descriptors)
  again = _ADD(first, genotypes + 1, fitness, descriptors)
  jax.tree.map(np.testing.assert_array_equal, again, first)
  later = _ADD(first, *_batch(3))
  stays = np.isin(later.fitness, first.fitness)
  assert 0 < stays.sum() < _PLACES
  np.testing.assert_array_equal(later.genotypes[stays], first.genotypes[stays])


def test_what_is_not_finite_never_enters():
  genotypes, fitness, descriptors = _batch(0)
  fitness[:3] = np.nan, np.inf, -np.inf
  descriptors[3:5, 0] = np.nan, np.inf
  genotypes[5, 1] = np.nan
  repertoire = _ADD(_empty(), genotypes, fitness, descriptors)
  found = np.sort(_contents(repertoire)[:, 0])
  np.testing.assert_array_equal(found, np.sort(fitness[6:]))


def test_metrics_are_told_in_the_cells_of_a_grid(tmp_path):
  batch = (
    np.zeros((4, 2), np.float32),
    np.array([1.0, 2.0, 3.0, 5.0], np.float32),
    np.array([[-1, -1], [-1.5, -1], [1, 1], [9, 1]], np.float32))
  measure = jax.jit(lambda x, batch: map_elites.metrics(x.add(*batch), 1.0))
  tessellation = map_elites.Unstructured(_PLACES, 2, _GRID, num_neighbors=2)
  told = measure(_empty(tessellation), batch)
  assert {name: float(x) for name, x in told.items()} == {
    "qd/qd_score": 9, "qd/coverage": 50, "qd/max_fitness": 5,
    "qd/num_outside": 1, "qd/num_elites": 4}
  _empty(tessellation).save(tmp_path / "x.npz")
  loaded = map_elites.Repertoire.load(tmp_path / "x.npz")
  assert loaded.tessellation == tessellation
  told = measure(_empty(), batch)
  assert told["qd/qd_score"] == 15 and told["qd/num_elites"] == 4
  np.testing.assert_allclose(told["qd/coverage"], 100 * 4 / _PLACES)


def test_a_container_of_ones_own_overrides_what_stays(tmp_path):
  tessellation = fittest.Places(_PLACES, 2)
  variation = map_elites.genetic_emitter(lambda key, x1, x2: x1 + 1, 6)
  emitter = map_elites.multi_emitter({"ga": variation})

  def evaluate(x, key):
    return jnp.sum(x, axis=1), x, {}

  @jax.jit
  def generation(first, key):
    evaluated = map_elites.Evaluated(first, *evaluate(first, None))
    before, state = map_elites.init(emitter, tessellation, evaluated, key)
    after = map_elites.step(emitter, evaluate, before, state, key)
    return before, *after

  first = _batch(0)[0]
  before, repertoire, state = generation(first, jax.random.key(0))
  assert isinstance(repertoire, fittest.Fittest)
  assert np.min(repertoire.fitness) >= np.sort(first.sum(axis=1))[-_PLACES]
  # Elites are found by what they are.
  is_new = ~np.isin(repertoire.fitness, before.fitness)
  assert is_new.any() and np.all(state.found_by[is_new] == 0)
  assert np.all(state.found_by[~is_new] == -1)
  repertoire.save(tmp_path / "x.npz")
  loaded = map_elites.Repertoire.load(
    tmp_path / "x.npz", tessellation=tessellation)
  assert isinstance(loaded, fittest.Fittest)
  assert loaded.tessellation == tessellation
  jax.tree.map(np.testing.assert_array_equal, loaded, repertoire)
