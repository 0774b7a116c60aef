"""Tests of a repertoire that a run left behind."""

import math

import jax.numpy as jnp
import numpy as np
import pytest

from qdrl_haiku import map_elites
from qdrl_haiku.programs.artifacts import repertoires
from qdrl_haiku.programs.storage.directory import RunDirectory
from tests import planes, toy


def _nearest(repertoire, point):
  """The cell by a loop over all, distances in units of the bounds."""
  lower, upper = planes.GRID.lower, planes.GRID.upper
  best, least = None, math.inf
  for cell, centroid in enumerate(planes.GRID.centroids.tolist()):
    distance = math.hypot(*(
      (min(max(x, low), high) - y) / (high - low)
      for x, y, low, high in zip(point, centroid, lower, upper, strict=True)))
    if repertoire.fitness[cell] > -math.inf and distance < least:
      best, least = cell, distance
  return best


def test_the_nearest_occupied_cell_is_that_of_a_loop():
  rng = np.random.default_rng(4)
  repertoire = planes.repertoire(
    planes.GRID, rng.uniform((0, -1), (8, 1), (4, 2)), np.arange(4.0))
  points = rng.uniform((-2, -1.5), (10, 1.5), (12, 2))
  found = [repertoires.nearest_occupied_cell(repertoire, x) for x in points]
  assert found == [_nearest(repertoire, x) for x in points.tolist()]
  assert len(set(found)) > 1


def test_without_cells_the_elite_itself_is_nearest():
  elites = planes.repertoire(
    map_elites.Unstructured(6, 2), [[1.0, -0.5], [4.0, 0.0], [7.0, 0.5]],
    [1.0, 3.0, 2.0])
  for point, fitness in (((3.0, 0.0), 3.0), ((9.0, 0.6), 2.0)):
    cell = repertoires.nearest_occupied_cell(elites, point)
    assert elites.fitness[cell] == fitness


def test_weights_choose_from_all_fronts_or_from_that_of_a_cell():
  objectives = np.array([[4, 0], [0, 3], [5, 2], [1, 1]], np.float32)
  elites = planes.repertoire(
    map_elites.Unstructured(6, 2, planes.GRID),
    [[1.0, -0.5], [1.1, -0.4], [7.0, 0.5], [7.1, 0.4]], np.zeros(4))
  with pytest.raises(ValueError, match="knows no objectives; leave it out"):
    repertoires.elite_by_weights(elites, (1.0,))
  elites.extras["objectives"] = np.append(objectives, [[9, 9]] * 2, axis=0)
  for weights, cell, expected in (
    ((1.0, 0.2), None, 2), ((1.0, 0.2), 1, 0), ((0.1, 1.0), 0, 1),
    ((-1.0, 0.0), None, 1), ((-1.0, 0.0), 2, 3)):
    assert repertoires.elite_by_weights(elites, weights, cell) == expected
  with pytest.raises(ValueError, match="2 objectives; give one number of each"):
    repertoires.elite_by_weights(elites, (1.0,))


def _write(tmp_path, fitness):
  """Writes a run of toy agents with one repertoire per fitness."""
  RunDirectory(tmp_path).write_json("config.json", {})
  elites = map_elites.Elite(
    {"offset": np.full(1, 0.5), "gain": np.ones(1)}, {"noise": np.full(1, 0.1)})
  for step, value in fitness.items():
    planes.in_cells(planes.GRID, [0], elites, [value], [[1.0, -0.5]]).save(
      tmp_path / "repertoire" / f"{step}.npz")


def test_the_latest_repertoire_is_read(tmp_path):
  learner = toy.linear_learner()
  _write(tmp_path, {80: 1.0, 1000: 2.0, 400: 3.0})
  (tmp_path / "repertoire" / ".2000.tmp.npz").write_text("half")
  (tmp_path / "repertoire" / "of_friday.npz").write_text("a user's")
  repertoire, step = repertoires.read_latest_repertoire(learner, str(tmp_path))
  assert step == 1000
  assert repertoire.fitness.max() == 2
  assert repertoire.genotypes.hyperparams["noise"][0] == np.float32(0.1)
  other = learner._replace(
    genotype=lambda state: {"offset": jnp.zeros(3), "gain": state["gain"]})
  with pytest.raises(ValueError, match="1000.npz holds agents of another kind"):
    repertoires.read_latest_repertoire(other, str(tmp_path))


def test_a_repertoire_that_is_not_there_or_damaged_is_refused(tmp_path):
  learner = toy.linear_learner()
  with pytest.raises(ValueError, match="holds no run"):
    repertoires.read_latest_repertoire(learner, str(tmp_path))
  _write(tmp_path, {})
  with pytest.raises(ValueError, match="nothing in repertoire/; .*train_me_pb"):
    repertoires.read_latest_repertoire(learner, str(tmp_path))
  _write(tmp_path, {80: -math.inf})
  with pytest.raises(ValueError, match="80.npz has no elite"):
    repertoires.read_latest_repertoire(learner, str(tmp_path))
  (tmp_path / "repertoire" / "90.npz").write_text("no repertoire")
  with pytest.raises(ValueError, match="90.npz can't be read as a repertoire"):
    repertoires.read_latest_repertoire(learner, str(tmp_path))
  (tmp_path / "repertoire" / "100.npz").mkdir()
  with pytest.raises(ValueError, match="100.npz can't be read: Is a directory"):
    repertoires.read_latest_repertoire(learner, str(tmp_path))
