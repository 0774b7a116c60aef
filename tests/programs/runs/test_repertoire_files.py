"""Tests of what a run writes of its repertoire."""

import json

import jax
import numpy as np

from qdrl_haiku import map_elites, training
from qdrl_haiku.programs import runs
from qdrl_haiku.programs.runs import reevaluation, repertoire_files
from qdrl_haiku.programs.runs.repertoire_files import RepertoireFiles
from qdrl_haiku.programs.storage.directory import RunDirectory
from tests import planes
from tests.programs.runs import common as runs_common
from tests.training import common

_SETTINGS = {"seed": 3, "layers": [4, 4]}
_STATE = training.State(
  generation=np.int32(1), emitter=(), repertoire=planes.PLANE,
  initial_steps=np.int32(60))


def _files(folder, plan=(), **config):
  return RepertoireFiles(
    common.repertoire_setup(**({"qd_offset": 1.0} | dict(plan))),
    runs.RunConfig(**({"num_reevaluations": 0} | config)), RunDirectory(folder),
    _SETTINGS)


def _is_picture(folder, step):
  png = (folder / "plots" / f"repertoire_{step}.png").read_bytes()
  return png.startswith(b"\x89PNG")


def test_a_file_and_a_picture_are_written_when_due_and_in_the_end(tmp_path):
  files = _files(tmp_path, repertoire_interval=2, picture_interval=1)
  for generation in (1, 2, 3):
    files.record(
      _STATE, common.KEY, generation, 100 * generation, generation == 3)
  assert runs_common.steps(tmp_path / "repertoire") == [200, 300]
  path = tmp_path / "repertoire" / "300.npz"
  read = map_elites.Repertoire.load(path)
  np.testing.assert_array_equal(read.fitness, planes.PLANE.fitness)
  with np.load(path) as file:
    config = json.loads(file["config"].item())["config"]
  assert config == _SETTINGS | {"descriptor_names": ["x", "y"]}
  assert all(_is_picture(tmp_path, step) for step in (100, 200, 300))


def test_centroids_are_there_before_anything_else_is_written(tmp_path):
  # Also where a kill kept them from a run that goes on.
  cells = map_elites.cvt(jax.random.key(0), 5, (-2.0, -2.0), (2.0, 2.0))
  _files(tmp_path, {"container": map_elites.cells(cells)})
  found = repertoire_files.read_repertoire_centroids(RunDirectory(tmp_path))
  np.testing.assert_array_equal(found, cells.centroids)


def test_what_a_second_look_found_is_written_and_drawn(tmp_path, monkeypatch):
  found = reevaluation.Reevaluation(
    cells=np.array([1, 6], np.int32),
    fitness=np.array([[7.0, 9.0], [5.0, 7.0]], np.float32),
    descriptors=np.zeros((2, 2, 2), np.float32), env_steps=20,
    corrected=planes.repertoire(planes.GRID, [[1.0, -0.5]], [8.0]))
  looks = []

  def look(repertoire, described_by, key):
    looks.append(jax.random.key_data(key).tolist())
    return found

  monkeypatch.setattr(reevaluation, "make_reevaluate", lambda *_: look)
  _files(tmp_path, num_reevaluations=2).record(
    _STATE, common.KEY, 1, 100, is_last=True)
  written = json.loads((tmp_path / "corrected.json").read_text())
  assert written == {
    "num_reevaluations": 2, "qd/coverage": 12.5, "qd/max_fitness": 8.0,
    "qd/num_outside": 0, "qd/qd_score": 9.0}
  with np.load(tmp_path / "reevaluation" / "100.npz") as file:
    for name in ("cells", "fitness", "descriptors"):
      np.testing.assert_array_equal(file[name], getattr(found, name))
  assert _is_picture(tmp_path, 100)
  # A finished run looks again where another number is asked for, and the same.
  for number, expected in ((2, 1), (3, 2)):
    files = _files(tmp_path, num_reevaluations=number)
    files.finish(_STATE, common.KEY, 100)
    assert len(looks) == expected
  assert looks[0] == looks[1]
