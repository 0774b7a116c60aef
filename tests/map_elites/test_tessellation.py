"""Tests of which cell a descriptor belongs to."""

import functools

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
  [[np.nan, 100.2], [0, np.nan], [np.inf, 100.2], [0, -np.inf]], np.float32)


def _uniform(seed, num, lower=_LOWER, upper=_UPPER):
  sample = np.random.default_rng(seed).uniform(lower, upper, (num, len(lower)))
  return sample.astype(np.float32)


def _cvt(num_cells):
  return map_elites.CVT(jnp.asarray(_uniform(9, num_cells)), _LOWER, _UPPER)


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
    grid.cell(grid.centroids).reshape(3, 2, 4)[2, 1], [20, 21, 22, 23])
  np.testing.assert_array_equal(grid.centroids[-1], [1.5, 0.75, 11.75])


@pytest.mark.parametrize(
  "tessellation", [map_elites.Grid((4, 5), _LOWER, _UPPER), _cvt(50)])
def test_outside_is_the_border_and_nonfinite_has_no_cell(tessellation):
  far = _uniform(1, 200, (-3e38, -1e4), (3e38, 1e4))
  moved = np.clip(far, np.float32(_LOWER), np.float32(_UPPER))
  cells = jax.jit(tessellation.cell)(np.concatenate([far, moved, _INVALID]))
  np.testing.assert_array_equal(cells[:200], cells[200:400])
  np.testing.assert_array_equal(cells[400:], [tessellation.num_cells] * 4)
  above = np.nextafter(np.float32(_UPPER), np.float32(np.inf))
  below = np.nextafter(np.float32(_LOWER), np.float32(-np.inf))
  rows = np.array([
    _LOWER, _UPPER, (above[0], 100.2), (0, above[1]), (below[0], 100.2),
    (0, below[1]), (-9, 999), (0, 100.2), *_INVALID], np.float32)
  np.testing.assert_array_equal(
    tessellation.outside(rows), [0, 0, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0])


@pytest.mark.parametrize("num_cells", [1, 50])
def test_cvt_cells_are_those_of_the_nearest_centroids(num_cells):
  tessellation = _cvt(num_cells)
  rows = _uniform(3, 1000)
  size = np.subtract(_UPPER, _LOWER)
  tree = spatial.cKDTree(np.asarray(tessellation.centroids, float) / size)
  nearest, _ = tree.query(rows / size)
  # Each device may find cells of its own.
  axis = jax.sharding.PartitionSpec("device")
  mesh = jax.make_mesh(
    (1,), ("device",), axis_types=(jax.sharding.AxisType.Auto,))
  cell = jax.shard_map(
    tessellation.cell, mesh=mesh, in_specs=axis, out_specs=axis)
  cells = np.asarray(jax.jit(cell)(rows))
  chosen = np.linalg.norm(rows / size - tree.data[cells], axis=1)
  # Rounding may decide between centroids that are equally near.
  np.testing.assert_allclose(chosen, nearest, atol=1e-5)
  assert len(set(cells.tolist())) == num_cells


def test_of_equally_near_centroids_the_first_is_chosen():
  centroids = jnp.array([[0.9], [0.2], [0.6], [0.2]])
  tessellation = map_elites.CVT(centroids, (0.0,), (1.0,))
  np.testing.assert_array_equal(
    tessellation.cell(jnp.array([[0.1], [0.2], [0.75]])), [1, 1, 0])


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
  bits = jax.random.bits(key, (k_means._MIN_SAMPLES, 2), jnp.uint16)
  samples = (np.asarray(bits, np.float64) + 0.5) / 2**16
  expected = _lloyd(samples, 5, k_means._MAX_ITERATIONS)
  found = np.asarray(map_elites.cvt(key, 5, _LOWER, _UPPER).centroids)
  size = np.subtract(_UPPER, _LOWER)
  np.testing.assert_allclose((found - _LOWER) / size, expected, atol=1e-4)


def test_centroids_to_which_no_sample_is_nearest_stay(monkeypatch):
  bits = jax.random.bits
  # Samples of four values only, so that of 16 centroids some coincide, and the
  # first of them takes all their samples.
  monkeypatch.setattr(
    jax.random, "bits", lambda *args: bits(*args) // 2**14 * 2**14 + 2**13)
  actual = np.asarray(k_means.k_means_centroids(jax.random.key(0), 16, 1))
  np.testing.assert_allclose(
    np.unique(actual), [0.125, 0.375, 0.625, 0.875], atol=1e-5)


def test_nothing_needs_a_table_of_distances():
  def largest(function, *args):
    equations = jaxprs.equations(function, *args)
    return max(v.aval.size for e in equations for v in e.outvars)

  assert largest(_cvt(100_000).cell, jnp.zeros((64, 2))) <= 2 * 100_000
  size = 30_000 * k_means._SAMPLES_PER_CELL * 3
  search = functools.partial(
    k_means.k_means_centroids, jax.random.key(0), 30_000, 3)
  assert largest(search) <= size


@pytest.mark.parametrize(("num", "lower", "upper"), [
  (10_000, -30.0, 30.0), (997, 1000.0, 1000.1), (3, -3e38, 3e38)])
def test_every_lower_edge_belongs_to_its_cell(num, lower, upper):
  grid = map_elites.Grid([np.int64(num)], np.array([lower]), [upper])
  # As a static argument of compiled functions.
  assert hash(grid) == hash(map_elites.Grid((num,), (lower,), (upper,)))
  indices = np.arange(num)
  edges = np.float32(lower + (np.float64(upper) - lower) * indices / num)
  np.testing.assert_array_equal(grid.edges[0][:-1], edges)
  # XLA takes what is nearer to 0 than a normal number for 0.
  below = np.nextafter(edges, np.float32(-np.inf))
  below = np.where(edges == 0, -np.finfo(np.float32).tiny, below)[1:, None]
  cells = jax.jit(grid.cell)(np.concatenate([edges[:, None], below]))
  np.testing.assert_array_equal(cells, [*indices, *indices[:-1]])
