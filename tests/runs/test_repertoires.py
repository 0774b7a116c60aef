"""Tests of what a run notes down of its repertoire."""

import json

import jax.numpy as jnp
import numpy as np

from qdrl_haiku import environments, map_elites
from qdrl_haiku.runs import reevaluation, repertoires
from qdrl_haiku.storage.directory import RunDirectory
from qdrl_haiku.training import illumination
from tests import planes
from tests.training import common

_SETTINGS = {"seed": 3, "layers": [4, 4]}


def test_a_file_and_a_picture_are_written_under_the_step(tmp_path):
  directory = RunDirectory(tmp_path)
  descriptor = environments.Descriptor(("x", "y"), (0.0, -1.0), (8.0, 1.0))
  for step in (100, 200):
    repertoires.write(directory, planes.PLANE, descriptor, step, _SETTINGS)
  for step in (100, 200):
    path = tmp_path / "repertoire" / f"{step}.npz"
    read = map_elites.Repertoire.load(path)
    np.testing.assert_array_equal(read.fitness, planes.PLANE.fitness)
    np.testing.assert_array_equal(
      read.genotypes.genotype, planes.PLANE.genotypes.genotype
    )
    with np.load(path) as file:
      config = json.loads(file["config"].item())["config"]
    assert config == _SETTINGS | {"descriptor_names": ["x", "y"]}
    png = (tmp_path / "plots" / f"repertoire_{step}.png").read_bytes()
    assert png.startswith(b"\x89PNG")


def test_the_first_row_has_the_metrics_of_the_first_repertoire():
  setup = common.repertoire_setup(qd_offset=5.0)
  state = illumination.Illumination(
    (), planes.PLANE, jnp.zeros((), jnp.int32), jnp.array(60)
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


def test_what_a_second_look_found_is_written_and_drawn(tmp_path):
  directory = RunDirectory(tmp_path)
  descriptor = environments.Descriptor(("x", "y"), (0.0, -1.0), (8.0, 1.0))
  found = reevaluation.Reevaluation(
    cells=np.array([1, 6], np.int32),
    fitness=np.array([[7.0, 9.0], [5.0, 7.0]], np.float32),
    descriptors=np.zeros((2, 2, 2), np.float32),
    env_steps=20,
    corrected=planes.repertoire(planes.GRID, [[1.0, -0.5]], [8.0]),
  )
  assert repertoires.known_reevaluations(directory) == 0
  repertoires.write(
    directory, planes.PLANE, descriptor, 100, _SETTINGS, found=found
  )
  repertoires.write_reevaluation(directory, found, 100, offset=1.0)
  assert repertoires.known_reevaluations(directory) == 2
  written = json.loads((tmp_path / "corrected.json").read_text())
  assert written == {
    "num_reevaluations": 2,
    "qd/coverage": 12.5,
    "qd/max_fitness": 8.0,
    "qd/num_outside": 0,
    "qd/qd_score": 9.0,
  }
  with np.load(tmp_path / "reevaluation" / "100.npz") as file:
    for name in ("cells", "fitness", "descriptors"):
      np.testing.assert_array_equal(file[name], getattr(found, name))
  png = (tmp_path / "plots" / "repertoire_100.png").read_bytes()
  assert png.startswith(b"\x89PNG")
