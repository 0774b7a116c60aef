"""Tests of the elites that a page shows."""

import numpy as np

from qdrl_haiku import map_elites
from qdrl_haiku.programs import reports
from qdrl_haiku.programs.reports import elite_table, rollouts
from qdrl_haiku.programs.storage.directory import RunDirectory
from tests import planes
from tests.programs.drawing import test_heatmaps
from tests.programs.reports import common


def _read(tmp_path):
  elites, problems = reports.read_elite_table(tmp_path)
  assert problems == []
  return elites


def _written(tmp_path, tessellation=planes.GRID):
  """The elites of a file, and the repertoire that was written to it."""
  saved = common.repertoire(tessellation)
  common.write_repertoire(RunDirectory(tmp_path), saved)
  return _read(tmp_path), saved


def _column(elites, name):
  """A row of the table that a click shows, of all elites."""
  columns = elite_table.elite_table_to_json(elites)["columns"]
  return {column["name"]: column for column in columns}[name]


def test_elites_are_those_of_the_file(tmp_path):
  elites, saved = _written(tmp_path)
  occupied = np.flatnonzero(saved.occupied)
  assert 0 < len(occupied) < 8
  np.testing.assert_array_equal(elites.cells, occupied)
  for name in ("fitness", "descriptors"):
    found, expected = (getattr(x, name) for x in (elites.repertoire, saved))
    np.testing.assert_array_equal(found, expected)
  for name, values in saved.genotypes.hyperparams.items():
    np.testing.assert_array_equal(elites.hyperparams[name], values[occupied])
    numbers = _column(elites, name)["values"]
    np.testing.assert_allclose(numbers, values[occupied], rtol=1e-5)
  assert (elites.step, list(elites.names)) == (400, ["a", "b"])


def test_a_damaged_file_is_reported_and_the_one_before_is_shown(tmp_path):
  assert reports.read_elite_table(tmp_path) == (None, [])
  directory = RunDirectory(tmp_path)
  saved = common.repertoire(planes.GRID)
  for step in (90, 1000):
    path = common.write_repertoire(directory, saved, step)
  path.write_bytes(path.read_bytes()[:-100])
  elites, (problem,) = reports.read_elite_table(tmp_path)
  assert elites.step == 90
  assert "1000.npz can't be read as a repertoire" in problem


def test_elites_are_chosen_all_over_the_repertoire(tmp_path):
  elites, _ = _written(tmp_path, map_elites.Grid((1000,), (0.0,), (1.0,)))
  size = len(elites.cells)
  for num in (1, 2, 17, size - 1, size):
    rows = rollouts.choose_rollout_elites(elites, num)
    assert len(rows) == num
    assert np.argmax(elites.repertoire.fitness[elites.cells]) in rows
    assert np.all(np.diff(rows) > 0)
    assert num < 17 or np.max(np.diff(rows)) < 2 * size / 16


def test_the_emitter_of_an_elite_is_told_where_there_were_several(tmp_path):
  saved = common.repertoire(planes.GRID)
  size = int(np.sum(saved.occupied))
  found_by = (np.arange(size) % 3 - 1).tolist()
  path = tmp_path / "repertoire" / "5.npz"
  saved.save(path, {"emitters": ["ga", "pga"], "found_by": found_by})
  elites = _read(tmp_path)
  names = ["ga", "pga", elite_table.FIRST]
  assert elites.finds == {
    name: found_by.count(i) for name, i in zip(names, (0, 1, -1), strict=True)}
  texts = _column(elites, "found by")["texts"]
  assert texts == [names[i] for i in found_by]


def test_a_click_shows_the_front_of_a_cell(tmp_path):
  saved = test_heatmaps.fronts()
  saved.save(
    tmp_path / "repertoire" / "5.npz",
    {"objective_names": ["speed", "thrift"]})
  elites = _read(tmp_path)
  assert _column(elites, "thrift")["values"] == [0, 2, 0]
  data = elite_table.elite_table_to_json(elites)
  assert data["image"] == [[0, -1, -1, -1], [-1, -1, -1, 2]]
  assert data["objectives"] == [[4, 1, 2], [0, 2, 0]]
  assert data["front_of"] == [0, 0, 7]
  assert len(data["fronts"]["data"]) == 3


def test_an_elite_shows_how_far_its_episodes_differ(tmp_path):
  elites, _ = _written(tmp_path)
  fitness, descriptors = common.look_again(tmp_path, elites.cells, 3)
  elites = _read(tmp_path)
  for name, values in (("episode return", fitness), ("b", descriptors[..., 1])):
    column = _column(elites, f"{name}, 3 times again")
    np.testing.assert_allclose(column["values"], values.mean(1), rtol=1e-5)
    spread = values.std(1, ddof=1)
    np.testing.assert_allclose(column["spread"], spread, rtol=1e-5)
  # One episode has no spread.
  common.look_again(tmp_path, elites.cells, 1)
  assert np.isnan(_read(tmp_path).again.spread).all()
  # That of other elites is not shown.
  common.look_again(tmp_path, elites.cells[::-1], 2)
  elites, (problem,) = reports.read_elite_table(tmp_path)
  assert elites.again is None
  assert "400.npz can't be read: it is of other elites" in problem
