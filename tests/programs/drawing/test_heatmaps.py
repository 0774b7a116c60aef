"""Tests of the pictures of a repertoire, and of where cells are drawn."""

import numpy as np
import pytest

from qdrl_haiku import map_elites
from qdrl_haiku.programs.drawing import heatmaps
from tests import planes

_RNG = np.random.default_rng(0)


def _pixels(figure):
  """The picture's numbers, lowest row first, its axes, and its edges."""
  axes = figure.axes[0]
  (image,) = axes.images
  assert image.origin == "lower"
  return np.ma.filled(image.get_array(), np.nan), axes, image.get_extent()


def _drawn(repertoire):
  """The fitness in each cell of the picture."""
  names = "abc"[: repertoire.descriptors.shape[1]]
  return _pixels(heatmaps.heatmap(repertoire, names))[0]


def test_the_cells_of_a_grid_are_drawn_where_they_lie():
  pixels, axes, extent = _pixels(heatmaps.heatmap(planes.PLANE, ("x", "y")))
  assert tuple(extent) == (0, 8, -1, 1)
  nan = np.nan
  np.testing.assert_array_equal(
    pixels, [[10, nan, nan, nan], [nan, nan, nan, 20]])
  assert (axes.get_xlabel(), axes.get_ylabel()) == ("x", "y")
  assert axes.get_title() == "25.0 % of 8 cells"


def test_a_corrected_repertoire_is_drawn_beside_it_in_the_same_colours():
  corrected = planes.repertoire(planes.GRID, [[7.0, 0.5]], [8.0])
  figure = heatmaps.heatmap(planes.PLANE, ("x", "y"), corrected)
  assert [axes.get_title() for axes in figure.axes[:2]] == [
    "as found: 25.0 % of 8 cells", "evaluated again: 12.5 % of 8 cells"]
  images = [axes.images[0] for axes in figure.axes[:2]]
  values = [np.unique(x.get_array().compressed()) for x in images]
  assert [x.tolist() for x in values] == [[10.0, 20.0], [8.0]]
  assert {image.get_clim() for image in images} == {(8.0, 20.0)}


def test_irregular_cells_are_drawn_where_they_lie():
  lower, upper = (0.0, -1.0), (80.0, 1.0)
  centroids = _RNG.uniform(lower, upper, (30, 2)).astype(np.float32)
  cvt = map_elites.CVT(centroids, lower, upper)
  # Each cell holds its own number.
  pixels = _drawn(planes.repertoire(cvt, centroids, np.arange(30.0)))
  x = (np.arange(400) + 0.5) / 400 * 80
  y = (np.arange(400) + 0.5) / 200 - 1
  points = np.stack(np.meshgrid(x, y), axis=-1).reshape(-1, 1, 2)
  away = np.sum(((points - centroids) / [80, 2]) ** 2, axis=2)
  # A pixel may lie on a border.
  assert np.mean(pixels.ravel() == np.argmin(away, axis=1)) > 0.999


def fronts():
  """Two elites in one cell and one in another, with objectives."""
  elites = planes.repertoire(
    map_elites.Unstructured(6, 2, planes.GRID),
    [[1.0, -0.5], [1.1, -0.4], [7.0, 0.5]], [4.0, 3.0, 2.0])
  elites.extras["objectives"] = np.array(
    [[4.0, 0], [1, 2], [2, 0], [9, 9], [9, 9], [9, 9]], np.float32)
  return elites


def test_of_fronts_the_fittest_of_each_cell_is_drawn_and_the_front_of_all():
  drawn = heatmaps.heatmap(
    fronts(), ("x", "y"), objectives=("speed", "thrift"))
  pixels, axes, _ = _pixels(drawn)
  assert axes.get_title() == "25.0 % of 8 cells"
  nan = np.nan
  np.testing.assert_array_equal(
    pixels, [[4, nan, nan, nan], [nan, nan, nan, 2]])
  axes = drawn.axes[1]
  assert axes.get_title() == "2 of 3 elites are in the front of all"
  assert (axes.get_xlabel(), axes.get_ylabel()) == ("speed", "thrift")
  assert any(
    x.get_xydata().tolist() == [[4, 0], [1, 2]] for x in axes.get_lines())
  _, whose = heatmaps.heatmap_cells(fronts())
  np.testing.assert_array_equal(whose, [0, -1, -1, -1, -1, -1, -1, 2])


def test_of_three_axes_the_fittest_of_each_place_is_drawn():
  grid = map_elites.Grid((2, 2, 2), (0.0,) * 3, (1.0,) * 3)
  descriptors = [[0.9, 0.1, 0.9], [0.1, 0.2, 0.1], [0.9, 0.1, 0.1]]
  pixels = _drawn(planes.repertoire(grid, descriptors, [3.0, 1.0, 2.0]))
  np.testing.assert_array_equal(pixels, [[1, 3], [np.nan, np.nan]])


@pytest.mark.parametrize(("size", "grid"), [(2, planes.GRID), (1, None)])
def test_without_cells_the_fittest_elite_at_each_place_is_drawn(size, grid):
  none = map_elites.Unstructured(8, size, grid)
  where = _RNG.uniform((0, -1), (8, 1), (6, 2))[:, :size]
  elites = planes.repertoire(none, where, np.arange(6.0))
  pixels, axes, _ = _pixels(heatmaps.heatmap(elites, "ab"[:size]))
  assert pixels.shape == ((64, 64) if size == 2 else (1, 64))
  assert axes.get_title() == "6 elites of 8"
  lower, upper = elites.bounds
  row, column = np.argwhere(pixels == 5)[0]
  place = (np.array([column, row][:size]) + 0.5) / 64
  assert np.all(np.abs(lower + place * (upper - lower) - where[5])
                <= 0.51 * (upper - lower) / 64)
