"""Tests of which individuals stay in a repertoire, and which are drawn."""

import dataclasses
import itertools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from qdrl_haiku import map_elites
from qdrl_haiku.map_elites import repertoire as repertoire_lib
from tests import jaxprs

_SIZE = 24
_GRID = map_elites.Grid((2, 3), (0.0, 0.0), (1.0, 1.0))
_ADD = jax.jit(map_elites.Repertoire.add)
_SAMPLE_CELLS = jax.jit(
  map_elites.Repertoire.sample_cells, static_argnums=2
)


class _Genotype(NamedTuple):
  tag: Any
  nothing: None
  weights: dict[str, Any]


def _genotypes(tags):
  """Every leaf tells the tag, so that a mixture of two is seen."""
  tags = np.asarray(tags, np.int32)
  weights = np.float32(tags)[..., None, None] + np.zeros((2, 3), np.float32)
  return _Genotype(tags, None, {"w": weights, "flag": tags % 2 == 1})


_EMPTY = map_elites.Repertoire.init(_genotypes(0), _GRID)


def _batch(seed, first_tag=0):
  """Few distinct values, so that ties, duplicates and non-finite abound."""
  rng = np.random.default_rng(seed)
  fitness = rng.choice(
    [0.0, -0.0, 1.0, 1.0, 2.0, -3.0, np.nan, np.inf, -np.inf], _SIZE
  )
  descriptors = rng.choice(
    [0.0, 0.0, -0.0, 0.2, 0.2, 0.7, 0.7, 1.0, -9.0, np.nan], (_SIZE, 2)
  )
  genotypes = _genotypes(first_tag + rng.integers(0, _SIZE, _SIZE))
  genotypes.weights["w"][rng.uniform(size=_SIZE) < 0.1, 1, 2] = np.nan
  return genotypes, np.float32(fitness), np.float32(descriptors)


def _filled_up(tags, fitness, descriptors):
  """A batch of the same size as the others, the rest of it invalid."""
  rest = _SIZE - len(tags)
  return (
    _genotypes([*tags, *[0] * rest]),
    np.float32([*fitness, *[np.nan] * rest]),
    np.float32([*descriptors, *[(0, 0)] * rest]),
  )


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
      _bits(_row(repertoire.genotypes, cell)),
    )
    for cell in np.flatnonzero(repertoire.fitness > -np.inf)
  }


@pytest.mark.parametrize("seed", range(8))
def test_repertoires_are_those_of_a_plain_loop(seed):
  repertoire, expected, num_outside = _EMPTY, {}, 0
  for i in range(3):
    batch = _batch((seed, i), first_tag=i * _SIZE)
    repertoire = _ADD(repertoire, *batch)
    expected, more = _reference(expected, batch)
    num_outside += more
    contents = _contents(repertoire)
    assert contents.keys() == expected.keys()
    for cell, found in contents.items():
      assert found in expected[cell]
      # Once the hash has decided, that one is the incumbent.
      expected[cell] = [found]
  assert int(repertoire.num_outside) == num_outside


@pytest.mark.parametrize("seed", range(4))
def test_the_order_of_a_batch_makes_no_difference_to_the_bit(seed):
  rng = np.random.default_rng(seed)
  start = _ADD(_EMPTY, *_batch((seed, 0)))
  batch = _batch((seed, 1))
  expected = _ADD(start, *batch)
  for _ in range(5):
    permuted = _row(batch, rng.permutation(_SIZE))
    _assert_bits_equal(_ADD(start, *permuted), expected)


def test_the_bits_of_each_leaf_break_ties():
  genotypes = {
    "float": np.float32([[1, 2], [2, 1]]),
    "zero": np.float32([[0.0], [-0.0]]),
    "tiny": np.float32([[1e-45], [2e-45]]),
    "bool": np.array([[True, False], [False, True]]),
    "int": np.int8([[1, -1], [-1, 1]]),
    "half": np.asarray(jnp.array([[1.0, 1.5], [1.5, 1.0]], jnp.bfloat16)),
  }
  repertoire = map_elites.Repertoire.init(
    _row(genotypes, 0), map_elites.Grid((1,), (-1.0,), (1.0,))
  )
  zeros = np.zeros(2, np.float32)
  for name, leaf in genotypes.items():
    # All but one leaf are alike.
    batch = jax.tree.map(lambda x: x[[0, 0]], genotypes) | {name: leaf}
    first, second = (
      _ADD(repertoire, _row(batch, order), zeros, zeros[:, None])
      for order in ([0, 1], [1, 0])
    )
    assert _bits(first) == _bits(second), name


def test_either_hash_alone_tells_genotypes_apart():
  rows = jnp.array(list(itertools.permutations(np.float32([0, 1, 2, 3, 4]))))
  hashes = np.asarray(repertoire_lib.hashes([rows[:, :2], rows[:, 2:]]))
  assert [len(np.unique(words)) for words in hashes] == [120, 120]
  assert not np.any(hashes[0] == hashes[1])
  # Two leaves are hashed as one: no two words have the same position.
  np.testing.assert_array_equal(repertoire_lib.hashes([rows]), hashes)


def test_the_least_descriptor_breaks_ties_before_genotypes_and_signs():
  for tags in ([1, 2], [2, 1]):
    batch = _filled_up(tags, [-0.0, 0.0], [(0.1, -0.0), (0.2, 0.0)])
    winner = _ADD(_EMPTY, *batch)
    assert int(winner.genotypes.tag[0]) == tags[0]
    assert not np.signbit(winner.fitness[0])
    assert not np.signbit(winner.descriptors[0, 1])


def test_an_incumbent_stays_if_the_fitness_is_equal():
  first = _ADD(_EMPTY, *_filled_up([5], [0], [(0.4, 0)]))
  for tag, x in ((4, 0.1), (6, 0.3), (7, 0.4)):
    same = _ADD(first, *_filled_up([tag], [0], [(x, 0)]))
    _assert_bits_equal(same, first)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("where", ["genotype", "fitness", "descriptor"])
def test_what_is_not_finite_is_ignored(value, where):
  start = _ADD(_EMPTY, *_filled_up([1], [1], [(0, 0)]))
  genotypes, fitness, descriptors = _filled_up([2], [2], [(0, 7)])
  array = {
    "genotype": genotypes.weights["w"][0, 1],
    "fitness": fitness,
    "descriptor": descriptors[0],
  }[where]
  array[0] = value
  _assert_bits_equal(_ADD(start, genotypes, fitness, descriptors), start)


def test_descriptors_outside_are_counted_also_where_they_lose():
  descriptors = [(9, 9), (0.5, 0.5), (1, 1), (-9, 0.5)]
  batch = _filled_up(range(4), [1, 2, 3, 4], descriptors)
  repertoire = _ADD(_ADD(_EMPTY, *batch), *batch)
  assert int(repertoire.num_outside) == 4
  np.testing.assert_array_equal(repertoire.fitness[jnp.array([1, 5])], [4, 3])
  # The count stops where an int32 does.
  full = dataclasses.replace(_EMPTY, num_outside=jnp.int32(2**31 - 2))
  assert int(_ADD(full, *batch).num_outside) == 2**31 - 1


def test_bounds_are_the_grids_or_a_little_beyond_the_elites():
  np.testing.assert_array_equal(_EMPTY.bounds, [(0, 0), (1, 1)])
  none = map_elites.Repertoire.init(
    jnp.zeros(1), map_elites.Unstructured(4, 2)
  )
  np.testing.assert_array_equal(none.bounds, [(0, 0), (1, 1)])
  one = _ADD(none, np.zeros((1, 1)), np.zeros(1), np.float32([[3.0, -1.0]]))
  # By 2 % of their width, which is of one alone 1 more than its distance.
  np.testing.assert_allclose(one.bounds, [(2.92, -1.04), (3.08, -0.96)])


def test_a_donated_repertoire_leaves_its_tessellation_to_the_caller():
  tessellation = map_elites.CVT(_GRID.centroids, _GRID.lower, _GRID.upper)
  repertoire = map_elites.Repertoire.init(_genotypes(0), tessellation)
  add = jax.jit(map_elites.Repertoire.add, donate_argnums=0)
  pointer = repertoire.genotypes.weights["w"].unsafe_buffer_pointer()
  after = add(repertoire, *_batch(5))
  assert after.genotypes.weights["w"].unsafe_buffer_pointer() == pointer
  np.testing.assert_array_equal(tessellation.centroids, _GRID.centroids)
  # Cells are those of the grid, so the contents are too.
  assert _contents(after) == _contents(_ADD(_EMPTY, *_batch(5)))


def test_adding_writes_only_rows_of_the_batch():
  """Only the scatters themselves make arrays as large as the repertoire."""
  grid = map_elites.Grid((1000,), (0.0,), (1.0,))
  repertoire = map_elites.Repertoire.init(_genotypes(0), grid)
  batch = (_genotypes(range(4)), np.zeros(4, np.float32), np.zeros((4, 1)))
  batch = jax.tree.map(jnp.asarray, batch)
  large = [
    e.primitive.name
    for e in jaxprs.equations(lambda r, b: r.add(*b), repertoire, batch)
    if any(v.aval.shape[:1] == (1000,) for v in e.outvars)
    and e.primitive.name not in ("jit", "pjit")
  ]
  assert large == ["scatter"] * 5


def _sparse():
  """Occupied are the cells 1, 4 and 5, of tags 11, 14 and 15."""
  cells = np.array([4, 1, 5])
  return _ADD(
    _EMPTY,
    *_filled_up(10 + cells, [-1, 1, 0], np.asarray(_GRID.centroids)[cells]),
  )


def test_samples_are_uniform_over_the_occupied_cells():
  cells = np.asarray(_SAMPLE_CELLS(_sparse(), jax.random.key(0), 20_000))
  assert cells.dtype == np.int32
  found, counts = np.unique(cells, return_counts=True)
  np.testing.assert_array_equal(found, [1, 4, 5])
  assert stats.chisquare(counts).pvalue > 0.01


def test_a_sample_holds_the_genotypes_of_the_cells_drawn():
  key = jax.random.key(1)
  sample = jax.jit(map_elites.Repertoire.sample, static_argnums=2)
  cells = np.asarray(_SAMPLE_CELLS(_sparse(), key, 20_000))
  _assert_bits_equal(sample(_sparse(), key, 20_000), _genotypes(10 + cells))
  # Of an empty repertoire it has the zeros of cell 0, and it may be empty.
  _assert_bits_equal(sample(_EMPTY, key, 20_000), _genotypes(0 * cells))
  assert _EMPTY.sample(key, 0).tag.shape == (0,)
  _assert_bits_equal(_EMPTY.add(*_row(_batch(0), np.zeros(0, int))), _EMPTY)
