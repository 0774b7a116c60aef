"""Tests of the elites that are shown, and of where their cells are drawn."""

import base64

import jax.numpy as jnp
import numpy as np
import pytest

from qdrl_haiku import map_elites, reports
from qdrl_haiku.reports import repertoire, rollouts
from qdrl_haiku.storage.directory import RunDirectory
from tests import planes
from tests.reports import common

_GRID = map_elites.Grid((4, 2), (0.0, -1.0), (8.0, 1.0))


def _written(tmp_path, tessellation, **arguments):
  """The elites of a file, and the repertoire that was written to it."""
  saved = common.repertoire(tessellation, **arguments)
  common.write_repertoire(RunDirectory(tmp_path), saved)
  elites, problems = reports.read_elites(tmp_path)
  assert problems == []
  return elites, saved


def _middles(image):
  """The middles of a picture's pixels, [rows, columns, 2]."""
  rows, columns = image.cells.shape
  x = np.linspace(*image.x, 2 * columns + 1)[1::2]
  y = np.linspace(*image.y, 2 * rows + 1)[1::2]
  return np.stack(np.meshgrid(x, y), axis=-1).astype(np.float32)


def _assert_cells_are_where_they_lie(elites, tessellation):
  image = repertoire.picture(elites)
  middles = _middles(image).reshape(-1, 2)[:, : len(tessellation.lower)]
  expected = np.asarray(tessellation.cell(middles))
  # A pixel may lie on a border.
  assert np.mean(image.cells.ravel() == expected) > 0.999


def test_elites_are_those_of_the_file(tmp_path):
  elites, saved = _written(tmp_path, _GRID)
  occupied = np.flatnonzero(saved.occupied)
  assert 0 < len(occupied) < 8
  np.testing.assert_array_equal(elites.cells, occupied)
  np.testing.assert_array_equal(elites.fitness, saved.fitness[occupied])
  np.testing.assert_array_equal(
    elites.descriptors, saved.descriptors[occupied]
  )
  for name, values in saved.genotypes.hyperparams.items():
    np.testing.assert_array_equal(elites.hyperparams[name], values[occupied])
  assert (elites.step, elites.names) == (400, ("a", "b"))


def test_a_grid_is_drawn_cell_by_cell(tmp_path):
  elites, _ = _written(tmp_path, _GRID)
  image = repertoire.picture(elites)
  assert image.cells.shape == (2, 4)
  assert (image.x, image.y) == ((0, 8), (-1, 1))
  _assert_cells_are_where_they_lie(elites, _GRID)


@pytest.mark.parametrize(
  "tessellation",
  [
    map_elites.Grid((5,), (0.0,), (8.0,)),
    map_elites.CVT(
      np.random.default_rng(0).uniform((0, -1), (80, 1), (30, 2)).astype("f4"),
      (0.0, -1.0),
      (80.0, 1.0),
    ),
  ],
  ids=["line", "cvt"],
)
def test_other_cells_are_drawn_where_they_lie(tessellation, tmp_path):
  elites, _ = _written(tmp_path, tessellation)
  _assert_cells_are_where_they_lie(elites, tessellation)


def test_of_three_axes_the_fittest_of_each_place_is_drawn(tmp_path):
  grid = map_elites.Grid((4, 2, 5), (0.0,) * 3, (1.0,) * 3)
  elites, saved = _written(tmp_path, grid, share=0.2)
  image = repertoire.picture(elites)
  fitness = np.asarray(saved.fitness).reshape(4, 2, 5)
  assert image.cells.shape == (2, 4)
  for (column, row), best in np.ndenumerate(fitness.max(axis=2)):
    cell = image.cells[row, column]
    assert cell == -1 if best == -np.inf else saved.fitness[cell] == best
  assert -1 in image.cells


def test_of_three_axes_an_elite_on_an_edge_is_drawn_in_its_cell(tmp_path):
  grid = map_elites.Grid((30, 30, 1), (-1.0,) * 3, (1.0,) * 3)
  edges = grid.edges[0][:-1]
  saved = map_elites.Repertoire.init(
    map_elites.Elite({"w": jnp.zeros(1)}, {"discount": jnp.zeros(())}), grid
  ).add(
    map_elites.Elite({"w": jnp.zeros((30, 1))}, {"discount": jnp.zeros(30)}),
    jnp.arange(30.0),
    jnp.stack([edges, edges, jnp.zeros(30)], axis=1),
  )
  common.write_repertoire(RunDirectory(tmp_path), saved)
  elites, _ = reports.read_elites(tmp_path)
  image = repertoire.picture(elites)
  assert np.all(np.diagonal(image.cells) >= 0)


def test_numbers_survive_as_text(tmp_path):
  elites, _ = _written(tmp_path, _GRID)
  text = repertoire.to_json(elites)["hyperparams"][0]
  read = np.frombuffer(base64.b64decode(text["values"]["bytes"]), "<f4")
  np.testing.assert_array_equal(read, elites.hyperparams["discount"])


def test_a_damaged_file_is_reported_and_the_one_before_is_shown(tmp_path):
  directory = RunDirectory(tmp_path)
  saved = common.repertoire(_GRID)
  for step in (90, 1000):
    path = common.write_repertoire(directory, saved, step)
  path.write_bytes(path.read_bytes()[:-100])
  elites, problems = reports.read_elites(tmp_path)
  assert elites.step == 90
  assert len(problems) == 1
  assert "1000.npz can't be read as a repertoire" in problems[0]


def test_a_run_without_a_repertoire_has_no_elites(tmp_path):
  assert reports.read_elites(tmp_path) == (None, [])


def test_elites_are_chosen_all_over_the_repertoire(tmp_path):
  elites, _ = _written(tmp_path, map_elites.Grid((1000,), (0.0,), (1.0,)))
  size = len(elites.cells)
  for num in (1, 2, 17, size - 1):
    rows = rollouts.chosen(elites, num)
    assert len(rows) == num
    assert np.argmax(elites.fitness) in rows
    assert np.all(np.diff(rows) > 0)
  assert np.max(np.diff(rollouts.chosen(elites, 17))) < 2 * size / 16
  np.testing.assert_array_equal(rollouts.chosen(elites, 9999), np.arange(size))


def test_elites_without_hyperparameters_can_be_shown(tmp_path):
  """Such as those of a pipeline of one's own."""
  plain = map_elites.Repertoire.init(jnp.zeros(2), _GRID)
  plain.save(tmp_path / "repertoire" / "5.npz")
  elites, problems = reports.read_elites(tmp_path)
  assert problems == []
  assert (elites.hyperparams, len(elites.cells)) == ({}, 0)
  assert elites.names == ("descriptor 1", "descriptor 2")


def test_who_found_an_elite_is_told_where_there_were_several(tmp_path):
  saved = common.repertoire(_GRID)
  size = int(np.sum(saved.occupied))
  found_by = (np.arange(size) % 3 - 1).tolist()
  saved.save(
    tmp_path / "repertoire" / "5.npz",
    {"emitters": ["ga", "pga"], "found_by": found_by},
  )
  elites, problems = reports.read_elites(tmp_path)
  assert problems == [] and elites.emitters == ("ga", "pga")
  assert elites.finds == {
    "ga": found_by.count(0), "pga": found_by.count(1),
    repertoire.FIRST: found_by.count(-1),
  }  # fmt: skip
  finders = repertoire.to_json(elites)["finders"]
  assert finders["names"] == ["ga", "pga", repertoire.FIRST]
  assert np.frombuffer(
    base64.b64decode(finders["found_by"]["bytes"]), "<i4"
  ).tolist() == found_by


def _look_again(tmp_path, saved, num_episodes):
  """Writes what episodes say of elites; returns returns and descriptors."""
  cells = np.flatnonzero(saved.occupied).astype(np.int32)
  rng = np.random.default_rng(1)
  fitness = rng.normal(size=(len(cells), num_episodes)).astype(np.float32)
  descriptors = rng.normal(size=(*fitness.shape, 2)).astype(np.float32)
  RunDirectory(tmp_path).write_arrays(
    "reevaluation/400.npz",
    {"cells": cells, "fitness": fitness, "descriptors": descriptors},
  )
  return fitness, descriptors


def _numbers(column):
  return np.frombuffer(base64.b64decode(column["bytes"]), "<f4")


def test_an_elite_shows_how_far_its_episodes_differ(tmp_path):
  _, saved = _written(tmp_path, _GRID)
  (tmp_path / "reevaluation").mkdir()
  fitness, descriptors = _look_again(tmp_path, saved, 3)
  elites, problems = reports.read_elites(tmp_path)
  assert problems == []
  again = repertoire.to_json(elites)["again"]
  assert again["num_episodes"] == 3
  for column, values in (
    (again["fitness"], fitness), (again["descriptors"][1], descriptors[..., 1])
  ):  # fmt: skip
    np.testing.assert_allclose(
      _numbers(column["mean"]), values.mean(1), rtol=1e-5
    )
    np.testing.assert_allclose(
      _numbers(column["spread"]), values.std(1, ddof=1), rtol=1e-5
    )


def test_a_second_look_at_other_elites_is_reported_and_not_shown(tmp_path):
  _, saved = _written(tmp_path, _GRID)
  (tmp_path / "reevaluation").mkdir()
  path = tmp_path / "reevaluation" / "400.npz"
  _look_again(tmp_path, saved, 1)
  elites, problems = reports.read_elites(tmp_path)
  assert problems == [] and np.isnan(elites.again.fitness_spread).all()
  with np.load(path) as file:
    arrays = dict(file)
  np.savez(path, **arrays | {"cells": arrays["cells"][::-1]})
  elites, problems = reports.read_elites(tmp_path)
  assert elites.again is None and repertoire.to_json(elites)["again"] is None
  assert f"{path} can't be read: it is of other elites" in problems[0]


def test_a_file_that_says_it_of_some_elites_only_is_damaged(tmp_path):
  saved = common.repertoire(_GRID)
  path = tmp_path / "repertoire" / "5.npz"
  saved.save(path, {"emitters": ["ga"], "found_by": [0]})
  elites, problems = reports.read_elites(tmp_path)
  assert elites is None
  assert "it doesn't say of each elite who found it" in problems[0]


@pytest.mark.parametrize("size, grid", [(2, None), (1, None), (2, _GRID)])
def test_without_cells_the_fittest_elite_at_each_place_is_drawn(
  tmp_path, size, grid
):
  rng = np.random.default_rng(0)
  saved = planes.repertoire(
    map_elites.Unstructured(8, size, grid),
    rng.uniform(-1, 1, (6, size)),
    rng.normal(size=6),
  )
  common.write_repertoire(RunDirectory(tmp_path), saved, names="ab"[:size])
  elites, problems = reports.read_elites(tmp_path)
  assert problems == []
  assert not elites.has_cells and elites.num_cells == 8
  image = repertoire.picture(elites)
  assert image.cells.shape == ((64, 64) if size == 2 else (1, 64))
  drawn = image.cells[image.cells >= 0]
  assert set(drawn) <= set(elites.cells) and len(drawn) > 1
  assert np.argmax(saved.fitness) in drawn
  repertoire.to_json(elites)
