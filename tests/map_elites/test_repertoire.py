"""Tests of which individuals stay in a repertoire, and which are drawn."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats

from qdrl_haiku import map_elites
from tests import jaxprs

_SIZE = 24
_GRID = map_elites.Grid((2, 3), (0.0, 0.0), (1.0, 1.0))
_Repertoire = map_elites.Repertoire
_ADD = jax.jit(_Repertoire.add)


class _Genotype(NamedTuple):
  tag: Any
  nothing: None
  weights: dict[str, Any]


def _genotypes(tags):
  """Every leaf tells the tag, so that a mixture of two is seen."""
  tags = np.asarray(tags, np.int32)
  weights = np.float32(tags)[..., None, None] + np.zeros((2, 3), np.float32)
  return _Genotype(tags, None, {"w": weights, "flag": tags % 2 == 1})


_EMPTY = _Repertoire.init(_genotypes(0), _GRID)


def _batch(seed, first_tag=0):
  """Few distinct values, so that ties, duplicates and non-finite abound."""
  rng = np.random.default_rng(seed)
  fitness = rng.choice(
    [0.0, -0.0, 1.0, 1.0, 2.0, -3.0, np.nan, np.inf, -np.inf], _SIZE)
  descriptors = rng.choice(
    [0.0, 0.0, -0.0, 0.2, 0.2, 0.7, 0.7, 1.0, -9.0, np.nan, np.inf], (_SIZE, 2))
  genotypes = _genotypes(first_tag + rng.integers(0, _SIZE, _SIZE))
  for value in (np.nan, np.inf, -np.inf):
    genotypes.weights["w"][rng.uniform(size=_SIZE) < 0.04, 1, 2] = value
  return genotypes, np.float32(fitness), np.float32(descriptors)


def _row(tree, i):
  return jax.tree.map(lambda x: np.asarray(x)[i], tree)


def _bits(tree):
  return b"".join(np.asarray(x).tobytes() for x in jax.tree.leaves(tree))


def _assert_bits_equal(first, second):
  assert jax.tree.structure(first) == jax.tree.structure(second)
  jax.tree.map(np.testing.assert_array_equal, first, second)
  assert _bits(first) == _bits(second)


def _reference(incumbents, batch):
  """Goes through a batch one by one, and keeps each cell's equally good.

  `incumbents`, and what is returned, lists (fitness, descriptor, genotype's
  bits) by cell, several where only the hash tells them apart; and how many
  descriptors were outside.
  """
  found: dict[int, list] = {}
  num_outside = 0
  for i in range(len(batch[1])):
    genotype, fitness, descriptor = _row(batch, i)
    numbers = [fitness, *descriptor, *np.ravel(genotype.weights["w"])]
    if not np.all(np.isfinite(numbers)):
      continue
    num_outside += bool(np.any((descriptor < 0) | (descriptor > 1)))
    x, y = np.clip(descriptor, 0, 1)
    cell = min(int(x * 2), 1) * 3 + min(int(y * 3), 2)
    # Adding 0 turns -0 into 0.
    candidate = (float(fitness) + 0, tuple(descriptor + 0), _bits(genotype))
    best = found.setdefault(cell, [candidate])
    rank, best_rank = [(-c[0], c[1]) for c in (candidate, best[0])]
    if rank < best_rank:
      found[cell] = [candidate]
    elif rank == best_rank:
      best.append(candidate)
  after = dict(incumbents)
  for cell, candidates in found.items():
    if cell not in after or candidates[0][0] > after[cell][0][0]:
      after[cell] = candidates
  return after, num_outside


def _contents(repertoire):
  """{cell: (fitness, descriptor, genotype's bits)} of the occupied cells."""
  repertoire = jax.device_get(repertoire)
  return {
    int(cell): (
      float(repertoire.fitness[cell]),
      tuple(repertoire.descriptors[cell]),
      _bits(_row(repertoire.genotypes, cell)))
    for cell in np.flatnonzero(repertoire.fitness > -np.inf)}


def test_repertoires_are_those_of_a_plain_loop_whatever_the_order():
  rng = np.random.default_rng(0)
  for seed in range(12):
    if seed % 3 == 0:
      repertoire, expected, num_outside = _EMPTY, {}, 0
    batch = _batch(seed, first_tag=seed * _SIZE)
    permuted = _row(batch, rng.permutation(_SIZE))
    before, repertoire = repertoire, _ADD(repertoire, *batch)
    _assert_bits_equal(_ADD(before, *permuted), repertoire)
    expected, more = _reference(expected, batch)
    num_outside += more
    contents = _contents(repertoire)
    assert contents.keys() == expected.keys()
    for cell, found in contents.items():
      assert found in expected[cell]
      # Once the hash has decided, that one is the incumbent.
      expected[cell] = [found]
    assert int(repertoire.num_outside) == num_outside
    # Zeros have one sign.
    for x in (repertoire.fitness, repertoire.descriptors):
      assert not np.any(np.signbit(x) & (np.asarray(x) == 0))


def test_the_bits_of_each_leaf_break_ties():
  genotypes = {
    "float": np.float32([[1, 2], [2, 1]]),
    "zero": np.float32([[0.0], [-0.0]]),
    "tiny": np.float32([[1e-45], [2e-45]]),
    "bool": np.array([[True, False], [False, True]]),
    "int": np.int8([[1, -1], [-1, 1]]),
    "half": np.asarray(jnp.array([[1.0, 1.5], [1.5, 1.0]], jnp.bfloat16))}
  repertoire = _Repertoire.init(
    _row(genotypes, 0), map_elites.Grid((1,), (-1.0,), (1.0,)))
  zeros = np.zeros(2, np.float32)
  for name, leaf in genotypes.items():
    # All but one leaf are alike.
    batch = jax.tree.map(lambda x: x[[0, 0]], genotypes) | {name: leaf}
    first, second = (
      _ADD(repertoire, _row(batch, order), zeros, zeros[:, None])
      for order in ([0, 1], [1, 0]))
    assert _bits(first) == _bits(second), name


def test_the_count_of_descriptors_outside_stops_where_an_int32_does():
  batch = _batch(0)
  full = dataclasses.replace(_EMPTY, num_outside=jnp.int32(2**31 - 2))
  assert int(_ADD(full, *batch).num_outside) == 2**31 - 1


def test_a_donated_repertoire_leaves_its_tessellation_to_the_caller():
  tessellation = map_elites.CVT(_GRID.centroids, _GRID.lower, _GRID.upper)
  repertoire = _Repertoire.init(_genotypes(0), tessellation)
  add = jax.jit(_Repertoire.add, donate_argnums=0)
  after = add(repertoire, *_batch(5))
  assert repertoire.fitness.is_deleted()
  np.testing.assert_array_equal(tessellation.centroids, _GRID.centroids)
  # Cells are those of the grid, so the contents are too.
  assert _contents(after) == _contents(_ADD(_EMPTY, *_batch(5)))


def test_adding_writes_only_rows_of_the_batch():
  """Only the scatters themselves make arrays as large as the repertoire."""
  grid = map_elites.Grid((1000,), (0.0,), (1.0,))
  repertoire = _Repertoire.init(_genotypes(0), grid)
  batch = (_genotypes(range(4)), np.zeros(4, np.float32), np.zeros((4, 1)))
  batch = jax.tree.map(jnp.asarray, batch)
  large = [
    e.primitive.name
    for e in jaxprs.equations(lambda r, b: r.add(*b), repertoire, batch)
    if any(v.aval.shape[:1] == (1000,) for v in e.outvars)
    and e.primitive.name not in ("jit", "pjit")]
  assert set(large) == {"scatter"}


def test_samples_are_uniform_over_the_occupied_cells():
  key, occupied = jax.random.key(1), np.array([1, 4, 5])
  descriptors = np.asarray(_GRID.centroids)[occupied]
  sparse = _ADD(
    _EMPTY, _genotypes(10 + occupied), np.float32([-1, 1, 0]), descriptors)
  sample, sample_cells = (
    jax.jit(method, static_argnums=2)
    for method in (_Repertoire.sample, _Repertoire.sample_cells))
  cells = np.asarray(sample_cells(sparse, key, 20_000))
  assert cells.dtype == np.int32
  found, counts = np.unique(cells, return_counts=True)
  np.testing.assert_array_equal(found, occupied)
  assert stats.chisquare(counts).pvalue > 0.01
  _assert_bits_equal(sample(sparse, key, 20_000), _genotypes(10 + cells))
  # Or by weights, of which those of empty cells don't count.
  weights = jnp.array([9.0, 3.0, 9.0, 9.0, 1.0, 0.0])
  weighted = dataclasses.replace(sparse, weights=weights)
  counts = np.bincount(sample_cells(weighted, key, 20_000), minlength=6)
  assert counts.sum() == counts[1] + counts[4]
  assert stats.chisquare(counts[[1, 4]], [15_000, 5_000]).pvalue > 0.01
  # Of an empty repertoire it has the zeros of cell 0, and it may be empty.
  _assert_bits_equal(sample(_EMPTY, key, 20_000), _genotypes(0 * cells))
  assert _EMPTY.sample(key, 0).tag.shape == (0,)
  _assert_bits_equal(_EMPTY.add(*_row(_batch(0), np.zeros(0, int))), _EMPTY)


def test_metrics_of_a_hand_worked_repertoire():
  grid = map_elites.Grid((5,), (0.0,), (5.0,))
  empty = _Repertoire.init(jnp.zeros(2), grid)
  measure = jax.jit(lambda r, *x: map_elites.metrics(r.add(*x), 10.0))
  fitness = np.float32([-3.0, 1.0, -2.0, -5.0])
  descriptors = np.float32([[0.5], [2.5], [9.0], [2.5]])
  found = measure(empty, np.zeros((4, 2), np.float32), fitness, descriptors)
  assert {name: float(x) for name, x in found.items()} == {
    "qd/qd_score": 7.0 + 11.0 + 8.0, "qd/coverage": 60.0, "qd/max_fitness": 1.0,
    "qd/num_outside": 1.0}
  found = map_elites.metrics(empty, 10.0)
  assert found["qd/qd_score"] == found["qd/coverage"] == 0
  assert np.isnan(found["qd/max_fitness"])
