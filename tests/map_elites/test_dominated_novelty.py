"""Tests of repertoires without cells."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qdrl_haiku import map_elites
from qdrl_haiku.map_elites.dominated_novelty import worths

_PLACES = 12
_NONE = map_elites.Unstructured(_PLACES, 2)


@jax.jit
def _add(repertoire, genotypes, fitness, descriptors):
  return repertoire.add(genotypes, fitness, descriptors)


def _empty(tessellation=_NONE):
  return map_elites.Repertoire.init(jnp.zeros(2), tessellation)


def _batch(seed, size=16):
  """Individuals whose genotype is their descriptor."""
  rng = np.random.default_rng(seed)
  descriptors = rng.uniform(-3, 3, (size, 2)).astype(np.float32)
  return descriptors, rng.normal(size=size).astype(np.float32), descriptors


def _contents(repertoire):
  rows = np.column_stack(
    [repertoire.fitness, repertoire.descriptors, repertoire.genotypes]
  )
  rows = rows[np.asarray(repertoire.occupied)]
  return rows[np.lexsort(rows.T)]


def _survivors(pool, num_places, k):
  """The paper's algorithm, one individual after the other, in float64."""
  worth = []
  for fitness, *point in pool:
    distances = sorted(
      np.linalg.norm(np.subtract(point, other))
      for other_fitness, *other in pool
      if other_fitness > fitness
    )
    worth.append(np.mean(distances[:k]) if distances else np.inf)
  return pool[np.argsort(-np.array(worth), kind="stable")[:num_places]]


def test_those_stay_that_the_papers_algorithm_keeps():
  repertoire, pool = _empty(), np.zeros((0, 3))
  for seed in range(4):
    genotypes, fitness, descriptors = _batch(seed)
    repertoire = _add(repertoire, genotypes, fitness, descriptors)
    new = np.column_stack([fitness, descriptors]).astype(np.float64)
    pool = _survivors(np.concatenate([pool, new]), _PLACES, k=3)
    expected = pool[np.lexsort(np.column_stack([pool, pool[:, 1:]]).T)]
    np.testing.assert_array_equal(_contents(repertoire)[:, :3], expected)
    np.testing.assert_array_equal(
      repertoire.genotypes, repertoire.descriptors
    )


def test_worth_is_the_mean_distance_to_the_nearest_fitter_ones():
  points = jnp.array([[0.0, 0], [3, 4], [0, 1], [0, 2], [9, 9]])
  takes_part = jnp.array([True, True, True, True, False])
  np.testing.assert_allclose(
    worths(points, takes_part, 2),
    [np.inf, 5, (1 + np.sqrt(18)) / 2, 1.5, -np.inf],
    rtol=1e-6,
  )


def test_order_never_matters():
  genotypes, fitness, descriptors = _batch(0)
  # Ties of all kinds: of fitness, of descriptors, of both, and of all.
  fitness[4:8] = fitness[0]
  descriptors[6:10] = descriptors[1]
  fitness[10:14], descriptors[10:14] = 2.0, 1.0
  genotypes = np.array(genotypes)
  genotypes[13] = genotypes[12]
  first = _add(_empty(), *_batch(1))
  expected = None
  for seed in range(6):
    order = np.random.default_rng(seed).permutation(16)
    found = _add(first, genotypes[order], fitness[order], descriptors[order])
    expected = expected or found
    jax.tree.map(np.testing.assert_array_equal, found, expected)


def test_an_incumbent_wins_a_tie_and_keeps_its_place():
  first = _add(_empty(), *_batch(0))
  genotypes, fitness, descriptors = _batch(0)
  again = _add(first, genotypes + 1, fitness, descriptors)
  jax.tree.map(np.testing.assert_array_equal, again, first)
  better = _add(first, genotypes + 1, fitness + 0.5, descriptors)
  # The fittest of all takes the place of whom it replaces.
  best = np.argmax(first.fitness)
  assert np.max(better.fitness) == np.max(first.fitness) + 0.5
  later = _add(better, *_batch(3))
  stays = np.isin(later.fitness, better.fitness)
  assert 0 < stays.sum() < _PLACES and first.fitness[best] > 0
  for name in ("fitness", "descriptors", "genotypes"):
    np.testing.assert_array_equal(
      getattr(later, name)[stays], getattr(better, name)[stays]
    )


def test_what_is_not_finite_never_enters():
  genotypes, fitness, descriptors = _batch(0)
  genotypes = np.array(genotypes)
  fitness[:3] = np.nan, np.inf, -np.inf
  descriptors[3:5, 0] = np.nan, np.inf
  genotypes[5, 1] = np.nan
  repertoire = _add(_empty(), genotypes, fitness, descriptors)
  assert np.sum(repertoire.occupied) == 10
  for leaf in jax.tree.leaves(repertoire):
    assert not np.isnan(leaf).any()
  np.testing.assert_array_equal(
    np.sort(_contents(repertoire)[:, 0]), np.sort(fitness[6:])
  )


def test_elites_are_found_by_what_they_are():
  genotypes, fitness, descriptors = _batch(0)
  repertoire = _add(_empty(), genotypes, fitness, descriptors)
  cells = np.asarray(repertoire.find(fitness, descriptors))
  is_elite = np.isin(fitness, repertoire.fitness)
  assert np.all(cells[~is_elite] == _PLACES)
  np.testing.assert_array_equal(
    repertoire.fitness[cells[is_elite]], fitness[is_elite]
  )
  assert np.all(repertoire.find(fitness + 1, descriptors) == _PLACES)


def test_metrics_are_told_in_the_cells_of_a_grid():
  batch = (
    np.zeros((4, 2), np.float32),
    np.array([1.0, 2.0, 3.0, 5.0], np.float32),
    np.array([[-1, -1], [-1.5, -1], [1, 1], [9, 1]], np.float32),
  )
  grid = map_elites.Grid((2, 2), (-2.0, -2.0), (2.0, 2.0))
  told = map_elites.metrics(
    _add(_empty(map_elites.Unstructured(_PLACES, 2, grid)), *batch), 1.0
  )
  assert {name: float(x) for name, x in told.items()} == {
    "qd/qd_score": 9, "qd/coverage": 50, "qd/max_fitness": 5,
    "qd/num_outside": 1, "qd/num_elites": 4,
  }  # fmt: skip
  told = map_elites.metrics(_add(_empty(), *batch), 1.0)
  assert told["qd/qd_score"] == 15 and told["qd/num_elites"] == 4
  np.testing.assert_allclose(told["qd/coverage"], 100 * 4 / _PLACES)


@pytest.mark.parametrize(
  "grid", [None, map_elites.Grid((3, 2), (-1.0, 0.0), (1.0, 2.0))]
)
def test_a_file_keeps_all_of_it(tmp_path, grid):
  tessellation = map_elites.Unstructured(_PLACES, 2, grid, num_neighbors=2)
  repertoire = _add(_empty(tessellation), *_batch(0, size=9))
  repertoire.save(tmp_path / "x.npz")
  loaded = map_elites.Repertoire.load(tmp_path / "x.npz")
  assert loaded.tessellation == tessellation
  jax.tree.map(np.testing.assert_array_equal, loaded, repertoire)


def test_a_mixture_knows_who_found_what():
  def emitter(shift):
    return map_elites.genetic_emitter(
      lambda key, x1, x2: x1 + shift, batch_size=4
    )

  mixed = map_elites.multi_emitter({"a": emitter(0.25), "b": emitter(-0.5)})

  def evaluate(genotypes, key):
    return -jnp.sum(genotypes**2, axis=1), genotypes, {}

  first = _batch(0)
  evaluated = map_elites.Evaluated(first[0], *evaluate(first[0], None))
  repertoire, state = map_elites.init(
    mixed, _NONE, evaluated, jax.random.key(0)
  )
  step = jax.jit(functools.partial(map_elites.step, mixed, evaluate))
  before = repertoire
  repertoire, state = step(repertoire, state, jax.random.key(1))
  is_new = ~np.isin(repertoire.fitness, before.fitness)
  assert is_new.any()
  np.testing.assert_array_equal(state.found_by >= 0, is_new)


def test_settings_that_make_no_sense_are_refused():
  with pytest.raises(ValueError, match="num_cells=0 is not a count"):
    map_elites.Unstructured(0, 2)
  grid = map_elites.Grid((2,), (0.0,), (1.0,))
  with pytest.raises(ValueError, match="is of 1 dimensions, and"):
    map_elites.Unstructured(4, 2, grid)
