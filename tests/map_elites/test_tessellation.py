"""Tests of which cell a descriptor belongs to."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import spatial

from qdrl_haiku import map_elites
from qdrl_haiku.map_elites import k_means
from tests import jaxprs

_LOWER, _UPPER = (-2.0, 100.0), (1.0, 100.5)
_INVALID = np.array(
  [[np.nan, 100.2], [0, np.nan], [np.inf, 100.2], [0, -np.inf]], np.float32
)


@functools.cache
def _cvt(num_cells=50, seed=0):
  return map_elites.cvt(jax.random.key(seed), num_cells, _LOWER, _UPPER)


def _uniform(seed, num, lower, upper):
  sample = np.random.default_rng(seed).uniform(lower, upper, (num, len(lower)))
  return sample.astype(np.float32)


def _cell_by_loops(grid, descriptor):
  """Counts the cells before the one whose edges enclose the descriptor."""
  index = 0
  for x, num, low, high in zip(
    descriptor, grid.shape, grid.lower, grid.upper, strict=True
  ):
    edges = [low + (high - low) * i / num for i in range(1, num)]
    index = index * num + sum(bool(x >= edge) for edge in edges)
  return index


def test_grid_cells_are_those_of_plain_loops():
  grid = map_elites.Grid((3, 2, 4), (-1.0, 0.0, 10.0), (2.0, 1.0, 12.0))
  descriptors = _uniform(0, 500, (-2.0, -0.5, 9.0), (3.0, 1.5, 13.0))
  expected = [_cell_by_loops(grid, row) for row in descriptors]
  assert len(set(expected)) == grid.num_cells == 24
  cells = grid.cell(descriptors)
  assert cells.dtype == jnp.int32
  np.testing.assert_array_equal(cells, expected)
  # A quantity of the cells, reshaped, is its picture.
  np.testing.assert_array_equal(
    grid.cell(grid.centroids).reshape(3, 2, 4)[2, 1], [20, 21, 22, 23]
  )
  np.testing.assert_array_equal(grid.centroids[-1], [1.5, 0.75, 11.75])


def test_a_grid_cell_has_its_lower_edge_and_the_last_its_upper_edge_too():
  grid = map_elites.Grid((4,), (0.0,), (1.0,))
  below = np.nextafter(np.float32(0.25), np.float32(0))
  edges = jnp.array([0, below, 0.25, 0.5, 0.75, 1.0])[:, None]
  np.testing.assert_array_equal(grid.cell(edges), [0, 0, 1, 2, 3, 3])


@pytest.mark.parametrize(
  "tessellation", [map_elites.Grid((4, 5), _LOWER, _UPPER), _cvt()]
)
class TestBoth:
  def test_each_centroid_is_in_its_own_cell(self, tessellation):
    np.testing.assert_array_equal(
      tessellation.cell(tessellation.centroids),
      np.arange(tessellation.num_cells),
    )

  def test_a_descriptor_outside_belongs_to_the_border(self, tessellation):
    far = _uniform(1, 200, (-1e4, -1e4), (1e4, 1e4))
    far[:2] = [[3e38, 3e38], [-3e38, 3e38]]
    moved = np.clip(far, np.float32(_LOWER), np.float32(_UPPER))
    cell = jax.jit(lambda t, x: t.cell(x))
    np.testing.assert_array_equal(
      cell(tessellation, far), cell(tessellation, moved)
    )

  def test_a_descriptor_that_is_not_finite_has_no_cell(self, tessellation):
    cells = jax.jit(lambda t, x: t.cell(x))(tessellation, _INVALID)
    np.testing.assert_array_equal(cells, [tessellation.num_cells] * 4)
    assert tessellation.cell(jnp.zeros((0, 2))).shape == (0,)

  def test_outside_is_beyond_the_bounds_and_finite(self, tessellation):
    above = np.nextafter(np.float32(_UPPER), np.float32(np.inf))
    below = np.nextafter(np.float32(_LOWER), np.float32(-np.inf))
    rows = np.array([
      _LOWER, _UPPER, (above[0], 100.2), (0, above[1]), (below[0], 100.2),
      (0, below[1]), (-9, 999), (0, 100.2), *_INVALID,
    ], np.float32)  # fmt: skip
    np.testing.assert_array_equal(
      tessellation.outside(rows), [0, 0, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0]
    )

  def test_each_device_can_find_cells_of_its_own(self, tessellation):
    axis = jax.sharding.PartitionSpec("device")
    cell = jax.shard_map(
      tessellation.cell,
      mesh=jax.make_mesh(
        (1,), ("device",), axis_types=(jax.sharding.AxisType.Auto,)
      ),
      in_specs=axis,
      out_specs=axis,
    )
    rows = _uniform(2, 20, _LOWER, _UPPER)
    np.testing.assert_array_equal(
      jax.jit(cell)(rows), tessellation.cell(rows)
    )


@pytest.mark.parametrize("num_cells", [1, 50])
def test_cvt_cells_are_those_of_the_nearest_centroids(num_cells):
  tessellation = _cvt(num_cells)
  rows = _uniform(3, 1000, _LOWER, _UPPER)
  size = np.subtract(_UPPER, _LOWER)
  tree = spatial.cKDTree(np.asarray(tessellation.centroids, float) / size)
  nearest, _ = tree.query(rows / size)
  cells = np.asarray(tessellation.cell(rows))
  chosen = np.linalg.norm(rows / size - tree.data[cells], axis=1)
  # Rounding may decide between centroids that are equally near.
  np.testing.assert_allclose(chosen, nearest, atol=1e-5)
  assert len(set(cells.tolist())) == num_cells


def test_of_equally_near_centroids_the_first_is_chosen():
  centroids = jnp.array([[0.9], [0.2], [0.6], [0.2]])
  tessellation = map_elites.CVT(centroids, (0.0,), (1.0,))
  np.testing.assert_array_equal(
    tessellation.cell(jnp.array([[0.1], [0.2], [0.75]])), [1, 1, 0]
  )


def test_a_cvt_is_the_same_for_the_same_key_and_for_no_other():
  again = map_elites.cvt(jax.random.key(0), 50, _LOWER, _UPPER)
  np.testing.assert_array_equal(_cvt().centroids, again.centroids)
  assert np.all(np.any(_cvt().centroids != _cvt(seed=1).centroids, axis=1))
  assert not np.any(_cvt().outside(again.centroids))


def _lloyd(samples, num_cells, num_iterations):
  """Lloyd's algorithm as the books have it, in float64."""
  centroids = samples[:num_cells].copy()
  for _ in range(num_iterations):
    distances = np.linalg.norm(samples[:, None] - centroids, axis=-1)
    nearest = np.argmin(distances, axis=1)
    for i in range(num_cells):
      if np.any(nearest == i):
        centroids[i] = np.mean(samples[nearest == i], axis=0)
  return centroids


def test_centroids_are_those_of_lloyds_algorithm():
  key = jax.random.key(0)
  bits = jax.random.bits(key, (k_means._MIN_SAMPLES, 3), jnp.uint16)
  samples = (np.asarray(bits, np.float64) + 0.5) / 2**16
  expected = _lloyd(samples, 5, k_means._MAX_ITERATIONS)
  actual = k_means.centroids(key, 5, 3)
  np.testing.assert_allclose(actual, expected, atol=1e-4)


def test_centroids_to_which_no_sample_is_nearest_stay(monkeypatch):
  bits = jax.random.bits
  # Samples of four values only, so that of 16 centroids some coincide, and the
  # first of them takes all their samples.
  monkeypatch.setattr(
    jax.random, "bits", lambda *args: bits(*args) // 2**14 * 2**14 + 2**13
  )
  actual = np.asarray(k_means.centroids(jax.random.key(0), 16, 1))
  np.testing.assert_allclose(
    np.unique(actual), [0.125, 0.375, 0.625, 0.875], atol=1e-5
  )


def test_nothing_needs_a_table_of_distances():
  def largest(function, *args):
    equations = jaxprs.equations(function, *args)
    return max(v.aval.size for e in equations for v in e.outvars)

  centroids = jnp.asarray(_uniform(6, 100_000, _LOWER, _UPPER))
  rows = jnp.zeros((64, 2))
  cvt = map_elites.CVT(centroids, _LOWER, _UPPER)
  assert largest(cvt.cell, rows) <= centroids.size
  grid = map_elites.Grid((10_000, 1), _LOWER, _UPPER)
  assert largest(grid.cell, rows) <= 10_000
  size = 30_000 * k_means._SAMPLES_PER_CELL * 3
  search = functools.partial(k_means.centroids, jax.random.key(0), 30_000, 3)
  assert largest(search) <= size


def test_bounds_and_shape_may_be_arrays_and_lists():
  grid = map_elites.Grid([np.int64(2), 3], np.zeros(2), jnp.ones(2))
  assert grid == map_elites.Grid((2, 3), (0.0, 0.0), (1.0, 1.0))
  assert hash(grid) == hash(map_elites.Grid((2, 3), (0, 0), (1, 1)))


@pytest.mark.parametrize(
  ("num", "lower", "upper"),
  [
    (100, -30.0, 30.0),
    (10_000, -30.0, 30.0),
    (997, 1000.0, 1000.1),
    (49, 1e-6, 3e-6),
    (3, -3e38, 3e38),
  ],
)
def test_every_lower_edge_belongs_to_its_cell(num, lower, upper):
  grid = map_elites.Grid((num,), (lower,), (upper,))
  indices = np.arange(num)
  edges = np.float32(lower + (np.float64(upper) - lower) * indices / num)
  np.testing.assert_array_equal(grid.edges[0][:-1], edges)
  # XLA takes what is nearer to 0 than a normal number for 0.
  below = np.nextafter(edges, np.float32(-np.inf))
  below = np.where(edges == 0, -np.finfo(np.float32).tiny, below)[1:, None]
  cells = jax.jit(grid.cell)(np.concatenate([edges[:, None], below]))
  np.testing.assert_array_equal(cells, [*indices, *indices[:-1]])


def test_every_corner_of_a_grid_belongs_to_its_cell_under_vmap():
  grid = map_elites.Grid((7, 1, 30), (-0.3, 0.0, -1.0), (0.4, 1.0, 1.0))
  corners = list(itertools.product(*(edges[:-1] for edges in grid.edges)))
  cells = jax.vmap(grid.cell)(np.array(corners, np.float32)[:, None])
  np.testing.assert_array_equal(np.ravel(cells), np.arange(210))
