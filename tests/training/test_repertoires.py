"""Tests of the files and pictures of a repertoire."""

import json
import math

import jax
import jax.numpy as jnp
import matplotlib.colors
import numpy as np
import pytest

from qdrl_haiku import environments, map_elites
from qdrl_haiku.training import illumination, logs, reevaluation, repertoires
from qdrl_haiku.training.repertoire_plots import heatmap
from tests import toy
from tests.training import test_illumination

_SETTINGS = {"seed": 3, "layers": [4, 4]}


def _repertoire(tessellation, descriptors, fitness):
  elite = map_elites.Elite(jnp.zeros(2), {"rate": jnp.zeros(())})
  size = len(fitness)
  return jax.device_get(
    map_elites.Repertoire.init(elite, tessellation).add(
      map_elites.Elite(
        jnp.arange(2.0 * size).reshape(size, 2), {"rate": jnp.ones(size)}
      ),
      jnp.array(fitness),
      jnp.array(descriptors).reshape(size, -1),
    )
  )


_GRID = map_elites.Grid((4, 2), (0.0, -1.0), (8.0, 1.0))
_PLANE = _repertoire(_GRID, [[1.0, -0.5], [7.0, 0.5]], [10.0, 20.0])


def _pixels(figure):
  """The picture's numbers, lowest row first, and its edges."""
  axes = figure.axes[0]
  (image,) = axes.images
  assert image.origin == "lower"
  return np.ma.filled(image.get_array(), np.nan), axes, image.get_extent()


def test_cells_are_drawn_where_they_lie():
  pixels, axes, extent = _pixels(heatmap(_PLANE, ("x", "y")))
  assert tuple(extent) == (0, 8, -1, 1)
  size = pixels.shape[0]
  quarter, half = size // 4, size // 2
  # Rows are y, columns x.
  assert np.all(pixels[:half, :quarter] == 10)
  assert np.all(pixels[half:, -quarter:] == 20)
  assert np.isfinite(pixels).sum() == 2 * half * quarter
  assert (axes.get_xlabel(), axes.get_ylabel()) == ("x", "y")
  assert axes.get_title() == "25.0 % of 8 cells"


def test_one_axis_is_drawn_as_a_strip():
  grid = map_elites.Grid((4,), (0.0,), (8.0,))
  line = _repertoire(grid, [[3.0]], [10.0])
  pixels, axes, _ = _pixels(heatmap(line, ("x",)))
  size = pixels.shape[1]
  assert np.all(pixels[:, size // 4 : size // 2] == 10)
  assert np.isfinite(pixels).sum() == size // 4
  assert axes.get_ylabel() == ""


def test_irregular_cells_are_drawn_where_they_lie():
  centroids = jnp.array([[1.0, 0.0], [7.0, 0.0]])
  cvt = map_elites.CVT(centroids, (0.0, -1.0), (8.0, 1.0))
  pixels, *_ = _pixels(heatmap(_repertoire(cvt, [[6.0, 0.9]], [5.0]), "xy"))
  half = pixels.shape[1] // 2
  assert np.all(np.isnan(pixels[:, : half - 1]))
  assert np.all(pixels[:, half + 1 :] == 5)


def test_of_three_axes_the_elites_are_drawn_and_the_fittest_on_top():
  grid = map_elites.Grid((2, 2, 2), (0.0,) * 3, (1.0,) * 3)
  descriptors = [[0.9, 0.1, 0.9], [0.1, 0.2, 0.1], [0.9, 0.1, 0.1]]
  figure = heatmap(_repertoire(grid, descriptors, [3.0, 1.0, 2.0]), "abc")
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


def test_a_file_and_a_picture_are_written_under_the_step(tmp_path):
  directory = logs.RunDirectory(tmp_path)
  descriptor = environments.Descriptor(("x", "y"), (0.0, -1.0), (8.0, 1.0))
  for step in (100, 200):
    repertoires.write(directory, _PLANE, descriptor, step, _SETTINGS)
  for step in (100, 200):
    path = tmp_path / "repertoire" / f"{step}.npz"
    read = map_elites.Repertoire.load(path)
    np.testing.assert_array_equal(read.fitness, _PLANE.fitness)
    np.testing.assert_array_equal(
      read.genotypes.genotype, _PLANE.genotypes.genotype
    )
    with np.load(path) as file:
      config = json.loads(file["config"].item())["config"]
    assert config == _SETTINGS | {"descriptor_names": ["x", "y"]}
    png = (tmp_path / "plots" / f"repertoire_{step}.png").read_bytes()
    assert png.startswith(b"\x89PNG")


def test_the_first_row_has_the_metrics_of_the_first_repertoire():
  setup = test_illumination.setup(qd_offset=5.0)
  state = illumination.Illumination(
    (), _PLANE, jnp.zeros((), jnp.int32), jnp.array(60)
  )
  assert repertoires.first_row(setup, state, 7) == {
    "generation": 0,
    "step": 0,
    "walltime": 0.0,
    "seed": 7,
    "total_env_steps": 60,
    "qd/qd_score": 40.0,
    "qd/coverage": 25.0,
    "qd/max_fitness": 20.0,
    "qd/num_outside": 0,
  }


def test_corrected_metrics_are_those_of_a_second_look(tmp_path, monkeypatch):
  asked = []

  def reevaluate(setup, repertoire, key, num_reevaluations):
    asked.append((setup.mesh, num_reevaluations))
    return _repertoire(_GRID, [[1.0, -0.5]], [8.0])

  monkeypatch.setattr(reevaluation, "reevaluate", reevaluate)
  setup = test_illumination.setup(mesh="some", qd_offset=1.0)
  repertoires.write_corrected(
    logs.RunDirectory(tmp_path), setup, _PLANE, jax.random.key(0), 6
  )
  # On the devices of training.
  assert asked == [("some", 6)]
  written = json.loads((tmp_path / "corrected.json").read_text())
  assert written == {
    "num_reevaluations": 6,
    "qd/coverage": 12.5,
    "qd/max_fitness": 8.0,
    "qd/num_outside": 0,
    "qd/qd_score": 9.0,
  }
  assert not any(math.isnan(x) for x in written.values())


_RNG = np.random.default_rng(0)
_CVT = map_elites.CVT(
  jnp.array(_RNG.uniform((0.0, -1.0), (8.0, 1.0), (20, 2)), jnp.float32),
  (0.0, -1.0),
  (8.0, 1.0),
)


def _scaled(point, tessellation):
  """A point in units of the bounds, from 0 to 1 along each axis."""
  return [
    (min(max(x, low), high) - low) / (high - low)
    for x, low, high in zip(
      point, tessellation.lower, tessellation.upper, strict=True
    )
  ]


def _nearest(repertoire, point):
  """The cell by a loop over all."""
  tessellation = repertoire.tessellation
  best, least = None, math.inf
  for cell, centroid in enumerate(tessellation.centroids.tolist()):
    distance = math.dist(
      _scaled(point, tessellation), _scaled(centroid, tessellation)
    )
    if repertoire.fitness[cell] > -math.inf and distance < least:
      best, least = cell, distance
  return best


@pytest.mark.parametrize("tessellation", [_GRID, _CVT])
@pytest.mark.parametrize("num_elites", [1, 4])
def test_the_nearest_occupied_cell_is_that_of_a_loop(tessellation, num_elites):
  rng = np.random.default_rng(num_elites)
  repertoire = _repertoire(
    tessellation,
    rng.uniform((0, -1), (8, 1), (num_elites, 2)),
    np.arange(num_elites, dtype=np.float32),
  )
  points = rng.uniform((-2, -1.5), (10, 1.5), (12, 2))
  found = [repertoires.nearest_occupied(repertoire, x) for x in points]
  assert found == [_nearest(repertoire, x) for x in points.tolist()]
  assert len(set(found)) > 1 or num_elites == 1


@pytest.mark.parametrize("tessellation", [_GRID, _CVT])
def test_an_elite_is_the_nearest_to_all_that_is_in_its_cell(tessellation):
  points = np.random.default_rng(0).uniform((0, -1), (8, 1), (9, 2))
  cells = tessellation.cell(jnp.array(points))
  everywhere = _repertoire(
    tessellation, tessellation.centroids, [1.0] * tessellation.num_cells
  )
  assert everywhere.occupied.all()
  found = [repertoires.nearest_occupied(everywhere, x) for x in points]
  assert found == cells.tolist()


def test_outside_of_the_bounds_the_nearest_point_inside_counts():
  repertoire = _repertoire(_GRID, [[7.0, -0.5], [1.0, 0.5]], [1.0, 2.0])
  # The second is nearer to the point itself.
  assert repertoires.nearest_occupied(repertoire, (7.0, 9.0)) == 6


def test_of_cells_equally_near_the_first_is_taken():
  grid = map_elites.Grid((3,), (0.0,), (3.0,))
  repertoire = _repertoire(grid, [[0.5], [2.5]], [1.0, 2.0])
  assert repertoires.nearest_occupied(repertoire, (1.5,)) == 0


@pytest.mark.parametrize("point", [(), (1.0,), (1.0, math.nan), (1.0, 2, 3)])
def test_what_is_no_descriptor_of_the_repertoire_is_refused(point):
  with pytest.raises(ValueError, match="give 2 finite numbers, from 0,-1 to 8"):
    repertoires.nearest_occupied(_PLANE, point)


@pytest.mark.parametrize(
  ("cell", "message"),
  [
    # Of 4 x 2 cells, 0 and 7 are occupied.
    (2, "cell 2 is empty; the nearest that holds an elite is 0[.]"),
    (5, "cell 5 is empty; the nearest that holds an elite is 7[.]"),
    (8, "cell 8 is none of 0 to 7; the nearest that .* is 7[.]"),
    (-1, "cell -1 is none of 0 to 7; the nearest that .* is 0[.]"),
  ],
)
def test_a_cell_without_an_elite_is_refused(cell, message):
  with pytest.raises(ValueError, match=message):
    repertoires.check_cell(_PLANE, cell)
  for occupied in (0, 7):
    repertoires.check_cell(_PLANE, occupied)


def _written(tmp_path, fitness):
  """A run of toy agents with one repertoire per fitness, and its learner."""
  directory = logs.RunDirectory(tmp_path)
  directory.write_json("config.json", {})
  learner = toy.linear_learner()
  elite = map_elites.Elite(
    learner.genotype(learner.init(jax.random.key(0))), learner.hyperparams
  )
  elite = jax.tree.map(jnp.float32, elite)
  for step, value in fitness.items():
    repertoire = map_elites.Repertoire.init(elite, _GRID).add(
      jax.tree.map(lambda x: x[None], elite),
      jnp.array([value]),
      jnp.array([[1.0, -0.5]]),
    )
    repertoire.save(tmp_path / "repertoire" / f"{step}.npz")
  return learner


def test_the_latest_repertoire_is_read(tmp_path):
  learner = _written(tmp_path, {80: 1.0, 1000: 2.0, 400: 3.0})
  (tmp_path / "repertoire" / ".2000.npz.7.tmp").write_text("half")
  (tmp_path / "repertoire" / "of_friday.npz").write_text("a user's")
  repertoire, step = repertoires.read_latest(learner, str(tmp_path))
  assert step == 1000
  assert repertoire.fitness.max() == 2
  assert isinstance(repertoire.fitness, np.ndarray)
  assert repertoire.genotypes.hyperparams["noise"][0] == np.float32(0.1)


def test_a_repertoire_of_other_agents_is_refused(tmp_path):
  _written(tmp_path, {80: 1.0})
  other = toy.linear_learner()._replace(
    genotype=lambda state: {"offset": jnp.zeros(3), "gain": state["gain"]}
  )
  with pytest.raises(ValueError, match="80.npz holds agents of another kind"):
    repertoires.read_latest(other, str(tmp_path))


def test_a_repertoire_that_is_not_there_or_damaged_is_refused(tmp_path):
  learner = toy.linear_learner()
  with pytest.raises(ValueError, match="holds no run"):
    repertoires.read_latest(learner, str(tmp_path))
  _written(tmp_path, {})
  with pytest.raises(ValueError, match="nothing in repertoire/; .*train_me_pb"):
    repertoires.read_latest(learner, str(tmp_path))
  _written(tmp_path, {80: -math.inf})
  with pytest.raises(ValueError, match="80.npz has no elite"):
    repertoires.read_latest(learner, str(tmp_path))
  (tmp_path / "repertoire" / "90.npz").write_text("no repertoire")
  with pytest.raises(ValueError, match="90.npz can't be read as a repertoire"):
    repertoires.read_latest(learner, str(tmp_path))
