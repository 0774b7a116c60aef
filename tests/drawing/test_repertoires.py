"""Tests of the pictures of a repertoire."""


import jax
import jax.numpy as jnp
import matplotlib.colors
import numpy as np
import pytest

from qdrl_haiku import map_elites
from qdrl_haiku.drawing.repertoires import heatmap
from tests import planes


def _pixels(figure):
  """The picture's numbers, lowest row first, and its edges."""
  axes = figure.axes[0]
  (image,) = axes.images
  assert image.origin == "lower"
  return np.ma.filled(image.get_array(), np.nan), axes, image.get_extent()


def test_cells_are_drawn_where_they_lie():
  pixels, axes, extent = _pixels(heatmap(planes.PLANE, ("x", "y")))
  assert tuple(extent) == (0, 8, -1, 1)
  size = pixels.shape[0]
  quarter, half = size // 4, size // 2
  # Rows are y, columns x.
  assert np.all(pixels[:half, :quarter] == 10)
  assert np.all(pixels[half:, -quarter:] == 20)
  assert np.isfinite(pixels).sum() == 2 * half * quarter
  assert (axes.get_xlabel(), axes.get_ylabel()) == ("x", "y")
  assert axes.get_title() == "25.0 % of 8 cells"


def test_a_corrected_repertoire_is_drawn_beside_it_in_the_same_colours():
  corrected = planes.repertoire(planes.GRID, [[7.0, 0.5]], [8.0])
  figure = heatmap(planes.PLANE, ("x", "y"), corrected)
  images = [axes.images[0] for axes in figure.axes[:2]]
  assert [axes.get_title() for axes in figure.axes[:2]] == [
    "as found: 25.0 % of 8 cells", "evaluated again: 12.5 % of 8 cells",
  ]  # fmt: skip
  values = [np.unique(x.get_array().compressed()) for x in images]
  assert [x.tolist() for x in values] == [[10.0, 20.0], [8.0]]
  assert {image.get_clim() for image in images} == {(8.0, 20.0)}


def test_one_axis_is_drawn_as_a_strip():
  grid = map_elites.Grid((4,), (0.0,), (8.0,))
  line = planes.repertoire(grid, [[3.0]], [10.0])
  pixels, axes, _ = _pixels(heatmap(line, ("x",)))
  size = pixels.shape[1]
  assert np.all(pixels[:, size // 4 : size // 2] == 10)
  assert np.isfinite(pixels).sum() == size // 4
  assert axes.get_ylabel() == ""


def test_irregular_cells_are_drawn_where_they_lie():
  centroids = jnp.array([[1.0, 0.0], [7.0, 0.0]])
  cvt = map_elites.CVT(centroids, (0.0, -1.0), (8.0, 1.0))
  repertoire = planes.repertoire(cvt, [[6.0, 0.9]], [5.0])
  pixels, *_ = _pixels(heatmap(repertoire, "xy"))
  half = pixels.shape[1] // 2
  assert np.all(np.isnan(pixels[:, : half - 1]))
  assert np.all(pixels[:, half + 1 :] == 5)


def test_of_three_axes_the_elites_are_drawn_and_the_fittest_on_top():
  grid = map_elites.Grid((2, 2, 2), (0.0,) * 3, (1.0,) * 3)
  descriptors = [[0.9, 0.1, 0.9], [0.1, 0.2, 0.1], [0.9, 0.1, 0.1]]
  figure = heatmap(planes.repertoire(grid, descriptors, [3.0, 1.0, 2.0]), "abc")
  (points,) = figure.axes[0].collections
  values = np.ma.filled(points.get_array(), np.nan)
  drawn = np.isfinite(values)
  assert values[drawn].tolist() == [1, 2, 3]
  np.testing.assert_allclose(
    np.asarray(points.get_offsets())[drawn],
    [[0.1, 0.2], [0.9, 0.1], [0.9, 0.1]],
    rtol=1e-6,
  )


@pytest.mark.parametrize("num_axes", [1, 2, 3])
def test_an_empty_repertoire_can_be_drawn(num_axes, tmp_path):
  grid = map_elites.Grid((2,) * num_axes, (0.0,) * num_axes, (1.0,) * num_axes)
  empty = jax.device_get(map_elites.Repertoire.init(jnp.zeros(2), grid))
  figure = heatmap(empty, "abc"[:num_axes])
  figure.savefig(tmp_path / "empty.png")
  assert figure.axes[0].get_title().startswith("0.0 %")
  grey = matplotlib.colors.to_rgba("0.85")
  assert figure.axes[0].get_facecolor() == grey


def test_without_cells_the_elites_are_drawn_where_they_are():
  none = map_elites.Unstructured(4, 2, planes.GRID)
  elites = planes.repertoire(none, [[1.0, -0.5], [7.0, 0.5]], [10.0, 20.0])
  axes = heatmap(elites, "xy").axes[0]
  (points,) = axes.collections
  places = points.get_offsets()[:2]
  np.testing.assert_allclose(places, [[1.0, -0.5], [7.0, 0.5]])
  np.testing.assert_array_equal(points.get_array()[:2], [10, 20])
  assert (axes.get_xlim(), axes.get_ylim()) == ((0, 8), (-1, 1))
  assert axes.get_title() == "2 elites of 4"


def test_without_cells_and_bounds_the_elites_say_what_is_drawn():
  none = map_elites.Unstructured(4, 1)
  axes = heatmap(planes.repertoire(none, [-50.0, 50], [1.0, 2]), "x").axes[0]
  assert axes.get_xlim() == (-52, 52)
