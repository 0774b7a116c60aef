"""Tests of what a run notes down of its repertoire."""

import json
import math

import jax
import jax.numpy as jnp
import numpy as np

from qdrl_haiku import environments, map_elites
from qdrl_haiku.runs import reevaluation, repertoires
from qdrl_haiku.storage.directory import RunDirectory
from qdrl_haiku.training import illumination
from tests import planes
from tests.training import test_illumination

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
  setup = test_illumination.setup(qd_offset=5.0)
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


def test_corrected_metrics_are_those_of_a_second_look(tmp_path, monkeypatch):
  asked = []

  def reevaluate(setup, repertoire, key, num_reevaluations):
    asked.append((setup.mesh, num_reevaluations))
    return planes.repertoire(planes.GRID, [[1.0, -0.5]], [8.0])

  monkeypatch.setattr(reevaluation, "reevaluate", reevaluate)
  setup = test_illumination.setup(mesh="some", qd_offset=1.0)
  repertoires.write_corrected(
    RunDirectory(tmp_path), setup, planes.PLANE, jax.random.key(0), 6
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
