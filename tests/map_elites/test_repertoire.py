"""Tests of who stays in a repertoire, and of who is drawn from it."""

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

_BATCH_SIZE = 24
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
  return _Genotype(
    tag=tags,
    nothing=None,
    weights={
      "w": np.float32(tags)[..., None, None] + np.zeros((2, 3), np.float32),
      "flag": tags % 2 == 1,
    },
  )


_EMPTY = map_elites.Repertoire.init(_genotypes(0), _GRID)


def _batch(seed, first_tag=0, num=_BATCH_SIZE):
  """Few distinct values, so that ties, duplicates and non-finite abound."""
  rng = np.random.default_rng(seed)
  tags = first_tag + rng.integers(0, num, num)
  fitness = rng.choice(
    [0.0, -0.0, 1.0, 1.0, 2.0, -3.0, np.nan, np.inf, -np.inf], num
  )
  descriptors = rng.choice(
    [0.0, 0.0, -0.0, 0.2, 0.2, 0.7, 0.7, 1.0, -9.0, np.nan], (num, 2)
  )
  genotypes = _genotypes(tags)
  genotypes.weights["w"][rng.uniform(size=num) < 0.1, 1, 2] = np.nan
  return genotypes, np.float32(fitness), np.float32(descriptors)


def _row(tree, i):
  return jax.tree.map(lambda x: np.asarray(x)[i], tree)


def _bits(tree):
  return b"".join(np.asarray(x).tobytes() for x in jax.tree.leaves(tree))


def _assert_bits_equal(first, second):
  assert jax.tree.structure(first) == jax.tree.structure(second)
  jax.tree.map(
    lambda x, y: np.testing.assert_array_equal(
      np.asarray(x).view(np.uint8), np.asarray(y).view(np.uint8)
    ),
    jax.tree.map(np.atleast_1d, first),
    jax.tree.map(np.atleast_1d, second),
  )


def _permuted(batch, order):
  return jax.tree.map(lambda x: np.asarray(x)[np.asarray(order)], batch)


def _reference(incumbents, batch):
  """Goes through a batch one by one, and keeps each cell's equally good.

  Args:
    incumbents: {cell: [(fitness, descriptor, genotype's bits)]}.
    batch: genotypes, fitness, descriptors.

  Returns:
    The same after the batch, where a cell may list several that only the hash
    tells apart; and how many descriptors were outside.
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
  return {
    int(cell): (
      float(repertoire.fitness[cell]),
      tuple(np.asarray(repertoire.descriptors[cell])),
      _bits(_row(repertoire.genotypes, cell)),
    )
    for cell in np.flatnonzero(np.asarray(repertoire.fitness) > -np.inf)
  }


@pytest.mark.parametrize("seed", range(20))
def test_repertoires_are_those_of_a_plain_loop(seed):
  repertoire, expected, num_outside = _EMPTY, {}, 0
  for i in range(3):
    batch = _batch((seed, i), first_tag=i * _BATCH_SIZE)
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


@pytest.mark.parametrize("seed", range(10))
def test_the_order_of_a_batch_makes_no_difference_to_the_bit(seed):
  rng = np.random.default_rng(seed)
  start = _ADD(_EMPTY, *_batch((seed, 0)))
  batch = _batch((seed, 1))
  expected = _ADD(start, *batch)
  for _ in range(5):
    order = rng.permutation(_BATCH_SIZE)
    _assert_bits_equal(_ADD(start, *_permuted(batch, order)), expected)


@pytest.mark.parametrize("seed", range(5))
def test_compiled_and_interpreted_repertoires_are_equal(seed):
  batch = _batch(seed)
  _assert_bits_equal(_ADD(_EMPTY, *batch), _EMPTY.add(*batch))


def test_one_batch_and_several_keep_the_same_fitness():
  batch = _batch(3)
  whole = _ADD(_EMPTY, *batch)
  parts = _EMPTY
  for i in range(0, _BATCH_SIZE, 6):
    parts = _ADD(parts, *_permuted(batch, range(i, i + 6)))
  _assert_bits_equal(parts.fitness, whole.fitness)
  _assert_bits_equal(parts.num_outside, whole.num_outside)


def _winner(genotypes, fitness=None, descriptors=None):
  """Who gets the only cell, in each order of two equally fit."""
  repertoire = map_elites.Repertoire.init(
    _row(genotypes, 0), map_elites.Grid((1,), (-1.0,), (1.0,))
  )
  batch = (
    genotypes,
    np.zeros(2, np.float32) if fitness is None else np.float32(fitness),
    np.float32([[0], [0]] if descriptors is None else descriptors),
  )
  results = [
    _ADD(repertoire, *_permuted(batch, order)) for order in ([0, 1], [1, 0])
  ]
  _assert_bits_equal(*results)
  return results[0]


@pytest.mark.parametrize(
  "genotypes",
  [
    np.float32([[1, 2], [2, 1]]),
    {"a": np.float32([1, 2]), "b": np.float32([2, 1])},
    np.float32([[0.0], [-0.0]]),
    np.array([[True, False], [False, True]]),
    np.int8([[1, -1], [-1, 1]]),
    np.uint16([[1], [2]]),
    jnp.array([[1.0, 1.5], [1.5, 1.0]], jnp.bfloat16),
    np.float32([[1e-45], [2e-45]]),
  ],
)
def test_the_bits_of_genotypes_break_ties(genotypes):
  _winner(genotypes)


def test_either_hash_alone_tells_genotypes_apart():
  rows = jnp.array(list(itertools.permutations(np.float32([0, 1, 2, 3, 4]))))
  hashes = np.asarray(repertoire_lib.hashes([rows[:, :2], rows[:, 2:]]))
  assert [len(np.unique(words)) for words in hashes] == [120, 120]
  assert not np.any(hashes[0] == hashes[1])
  # Two leaves are hashed as one: no two words have the same position.
  np.testing.assert_array_equal(repertoire_lib.hashes([rows]), hashes)


def test_the_least_descriptor_breaks_ties_before_genotypes():
  for tags in ([1, 2], [2, 1]):
    genotypes = np.float32(tags)
    winner = _winner(genotypes, descriptors=[[-0.5], [0.5]])
    assert float(winner.genotypes[0]) == tags[0]
    assert float(winner.descriptors[0, 0]) == -0.5


def test_zeros_of_either_sign_are_equal():
  genotypes = np.float32([1, 1])
  winner = _winner(genotypes, [0.0, -0.0], [[-0.0], [0.0]])
  assert not np.signbit(winner.fitness[0])
  assert not np.signbit(winner.descriptors[0, 0])
  # Equal fitness, so the descriptor decides and not the sign.
  assert float(_winner(
    np.float32([1, 2]), [-0.0, 0.0], [[-0.5], [0.5]]
  ).genotypes[0]) == 1


def test_an_incumbent_stays_if_the_fitness_is_equal():
  row = lambda tag, x: (  # noqa: E731
    _genotypes([tag]), np.zeros(1, np.float32), np.float32([[x, 0.0]])
  )
  first = _ADD(_EMPTY, *row(5, 0.4))
  for tag, x in ((4, 0.1), (6, 0.3), (7, 0.4)):
    _assert_bits_equal(_ADD(first, *row(tag, x)), first)


def test_a_fitter_individual_takes_all_of_a_cell():
  repertoire = _EMPTY
  for tag, fitness in ((1, -5.0), (2, -4.0), (3, -4.5)):
    repertoire = _ADD(
      repertoire,
      _genotypes([tag]),
      np.float32([fitness]),
      np.float32([[0.1 * tag, 0.5]]),
    )
  assert float(repertoire.fitness[1]) == -4
  _assert_bits_equal(repertoire.descriptors[1], np.float32([0.2, 0.5]))
  _assert_bits_equal(_row(repertoire.genotypes, 1), _row(_genotypes([2]), 0))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("where", ["genotype", "fitness", "descriptor"])
def test_what_is_not_finite_is_ignored(value, where):
  start = _ADD(_EMPTY, _genotypes([1]), np.float32([1]), np.zeros((1, 2)))
  genotypes = _genotypes([2])
  fitness, descriptors = np.float32([2]), np.float32([[0, 7]])
  array = {
    "genotype": genotypes.weights["w"][0, 1],
    "fitness": fitness,
    "descriptor": descriptors[0],
  }[where]
  array[0] = value
  _assert_bits_equal(_ADD(start, genotypes, fitness, descriptors), start)


def test_descriptors_outside_are_counted_also_where_they_lose():
  descriptors = np.float32([[9, 9], [0.5, 0.5], [1, 1], [-9, 0.5]])
  batch = (_genotypes(range(4)), np.float32([1, 2, 3, 4]), descriptors)
  repertoire = _ADD(_ADD(_EMPTY, *batch), *batch)
  assert int(repertoire.num_outside) == 4
  np.testing.assert_array_equal(repertoire.fitness[jnp.array([1, 5])], [4, 3])


def test_the_count_of_those_outside_stops_where_an_int32_does():
  start = dataclasses.replace(_EMPTY, num_outside=jnp.int32(2**31 - 2))
  batch = _genotypes(range(3)), np.zeros(3, np.float32), np.full((3, 2), 9.0)
  repertoire = _ADD(start, *batch)
  assert int(repertoire.num_outside) == 2**31 - 1
  assert int(_ADD(repertoire, *batch).num_outside) == 2**31 - 1


def test_no_individuals_change_nothing():
  start = _ADD(_EMPTY, *_batch(0))
  nobody = _permuted(_batch(1), np.zeros(0, int))
  _assert_bits_equal(_ADD(start, *nobody), start)


def test_a_repertoire_with_centroids_works_alike():
  centroids = _GRID.centroids
  tessellation = map_elites.CVT(centroids, _GRID.lower, _GRID.upper)
  repertoire = map_elites.Repertoire.init(_genotypes(0), tessellation)
  batch = _batch(5)
  found, expected = _ADD(repertoire, *batch), _ADD(_EMPTY, *batch)
  for name in ("genotypes", "fitness", "descriptors", "num_outside"):
    _assert_bits_equal(getattr(found, name), getattr(expected, name))


def test_bounds_are_the_grids_or_a_little_beyond_the_elites():
  np.testing.assert_array_equal(_EMPTY.bounds, [(0, 0), (1, 1)])
  none = map_elites.Repertoire.init(
    jnp.zeros(1), map_elites.Unstructured(4, 2)
  )
  np.testing.assert_array_equal(none.bounds, [(0, 0), (1, 1)])
  one = _ADD(none, np.zeros((1, 1)), np.zeros(1), np.float32([[3.0, -1.0]]))
  # By 2 % of their width, which is of one alone 1 more than its distance.
  np.testing.assert_allclose(one.bounds, [(2.92, -1.04), (3.08, -0.96)])


def test_init_takes_shapes_in_place_of_an_example():
  shapes = jax.eval_shape(lambda x: x, _genotypes(0))
  _assert_bits_equal(map_elites.Repertoire.init(shapes, _GRID), _EMPTY)
  assert _EMPTY.genotypes.tag.shape == (6,)
  assert _EMPTY.genotypes.weights["w"].shape == (6, 2, 3)
  assert np.all(np.isneginf(_EMPTY.fitness))
  assert not np.any(_EMPTY.occupied)


def test_a_donated_repertoire_leaves_its_tessellation_to_the_caller():
  tessellation = map_elites.CVT(_GRID.centroids, _GRID.lower, _GRID.upper)
  repertoire = map_elites.Repertoire.init(_genotypes(0), tessellation)
  add = jax.jit(map_elites.Repertoire.add, donate_argnums=0)
  pointer = repertoire.genotypes.weights["w"].unsafe_buffer_pointer()
  after = add(repertoire, *_batch(0))
  assert after.genotypes.weights["w"].unsafe_buffer_pointer() == pointer
  np.testing.assert_array_equal(tessellation.centroids, _GRID.centroids)


def test_adding_writes_only_rows_of_the_batch():
  """Only the scatters themselves make arrays as large as the repertoire."""
  grid = map_elites.Grid((1000,), (0.0,), (1.0,))
  repertoire = map_elites.Repertoire.init(_genotypes(0), grid)
  batch = (_genotypes(range(4)), np.zeros(4, np.float32), np.zeros((4, 1)))
  batch = jax.tree.map(jnp.asarray, batch)
  large = [
    e.primitive.name
    for e in jaxprs.equations(
      lambda r, b: r.add(*b), repertoire, batch
    )
    if any(v.aval.shape[:1] == (1000,) for v in e.outvars)
    and e.primitive.name not in ("jit", "pjit")
  ]
  assert large == ["scatter"] * 5


def _sparse():
  """Occupied are the cells 1, 4 and 5, of tags 11, 14 and 15."""
  cells = np.array([4, 1, 5])
  return _ADD(
    _EMPTY,
    _genotypes(10 + cells),
    np.float32([-1, 1, 0]),
    np.asarray(_GRID.centroids)[cells],
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
  cells = _SAMPLE_CELLS(_sparse(), key, 50)
  _assert_bits_equal(
    sample(_sparse(), key, 50), _genotypes(10 + np.asarray(cells))
  )


def test_another_key_draws_another_sample():
  first, second = (
    _SAMPLE_CELLS(_sparse(), jax.random.key(i), 50) for i in range(2)
  )
  assert np.any(first != second)


def test_all_cells_of_a_full_repertoire_are_drawn():
  full = _ADD(
    _EMPTY, _genotypes(range(6)), np.zeros(6, np.float32), _GRID.centroids
  )
  cells = _SAMPLE_CELLS(full, jax.random.key(0), 500)
  assert set(np.asarray(cells).tolist()) == set(range(6))


def test_an_empty_repertoire_gives_the_zeros_of_cell_0():
  assert np.all(_SAMPLE_CELLS(_EMPTY, jax.random.key(0), 5) == 0)
  sample = _EMPTY.sample(jax.random.key(0), 5)
  _assert_bits_equal(sample, _genotypes(np.zeros(5)))


def test_a_sample_may_be_of_nobody():
  sample = _sparse().sample(jax.random.key(0), 0)
  _assert_bits_equal(sample, _genotypes(np.zeros(0)))


def _with(changes):
  genotypes, fitness, descriptors = _batch(0, num=4)
  batch = {
    "genotypes": genotypes, "fitness": fitness, "descriptors": descriptors
  }  # fmt: skip
  return batch | changes


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    ({"fitness": np.zeros((4, 1), np.float32)}, r"fitness .* \[B\]"),
    ({"fitness": np.zeros(4, np.int32)}, "fitness has dtype int32"),
    ({"descriptors": np.zeros((4, 3))}, r"descriptors .* \(4, 2\)"),
    ({"descriptors": np.zeros((3, 2))}, r"descriptors .* \(4, 2\)"),
    ({"descriptors": np.zeros((4, 2), bool)}, "descriptors has dtype bool"),
    ({"genotypes": {"tag": np.zeros(4)}}, "structure"),
    ({"genotypes": _genotypes(range(3))}, r"\.tag is int32\(3,\)"),
    (
      {"genotypes": _genotypes(range(4))._replace(tag=np.zeros(4))},
      r"\.tag is float32\(4,\); give int32\(4,\)",
    ),
    (
      {
        "genotypes": _genotypes(range(4))._replace(
          weights={"w": np.zeros((4, 3, 2)), "flag": np.zeros(4, bool)}
        )
      },
      r"\.weights\['w'\] is float32\(4, 3, 2\); give float32\(4, 2, 3\)",
    ),
  ],
)
def test_batches_that_do_not_fit_are_refused(changes, message):
  with pytest.raises(ValueError, match=message):
    _EMPTY.add(**_with(changes))


@pytest.mark.parametrize(
  ("genotype", "message"),
  [
    ({"a": jnp.zeros(2, jnp.complex64)}, r"\['a'\] has dtype complex64"),
    ({"a": jnp.zeros(2, jnp.int4)}, r"\['a'\] has dtype int4"),
    ({"a": jax.random.key(0)}, r"\['a'\] has dtype key"),
    ({"a": None}, "no leaf"),
  ],
)
def test_genotypes_that_can_not_be_stored_are_refused(genotype, message):
  with pytest.raises(ValueError, match=message):
    map_elites.Repertoire.init(genotype, _GRID)
