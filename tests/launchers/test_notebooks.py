"""Tests of the notebooks: each is short, shows what came out, and runs."""

import pathlib

import nbclient
import nbformat
import pytest

_FOLDER = pathlib.Path(__file__).parents[2] / "launchers" / "notebooks"
# What takes the place of the numbers in the cell that is tagged "parameters".
_SMALL = {
  "from_qdax": {"NUM_GENERATIONS": 2, "EPISODE_LENGTH": 10},
  "map_elites": {"NUM_GENERATIONS": 2, "EPISODE_LENGTH": 10},
  "own_robot": {"NUM_TIMESTEPS": 160, "INTERVAL": 80, "EPISODE_LENGTH": 20},
  "pbt_by_hand": {"STEPS": 40, "INTERVAL": 20},
  "quickstart": {"NUM_TIMESTEPS": 1200, "INTERVAL": 400},
  "skills": {"DIAYN_TIMESTEPS": 640, "METRA_TIMESTEPS": 640}}


def _notebook(name):
  """A notebook, and the cells of its code."""
  notebook = nbformat.read(_FOLDER / f"{name}.ipynb", nbformat.NO_CONVERT)
  return notebook, [x for x in notebook.cells if x.cell_type == "code"]


def test_the_notebooks_are_those_that_are_run_here():
  assert {path.stem for path in _FOLDER.glob("*.ipynb")} == set(_SMALL)


@pytest.mark.parametrize("name", _SMALL)
def test_a_notebook_is_short_and_shows_what_came_out(name):
  notebook, (install, *cells) = _notebook(name)
  assert "on two cores" in notebook.cells[0].source
  # Only where something is missing.
  assert "find_spec" in install.source and not install.outputs
  assert "\n  %pip install -q " in install.source
  lines = [x for cell in cells for x in cell.source.splitlines() if x.strip()]
  assert len(lines) <= 60
  outputs = [output for cell in cells for output in cell.outputs]
  assert not [x for x in outputs if x.output_type == "error"]
  assert any("image/png" in x.get("data", {}) for x in outputs)
  assert (_FOLDER / f"{name}.ipynb").stat().st_size < 1_200_000


@pytest.mark.slow
@pytest.mark.parametrize("name", _SMALL)
def test_a_notebook_runs(name, tmp_path):
  if name == "own_robot":
    pytest.importorskip("jax2onnx")
  notebook, cells = _notebook(name)
  (parameters,) = [x for x in cells if x.metadata.get("tags") == ["parameters"]]
  before = parameters.source.partition("=")[0].strip()
  assert before == ", ".join(_SMALL[name])
  parameters.source = f"{before} = {tuple(_SMALL[name].values())}"
  folder = {"metadata": {"path": str(tmp_path)}}
  nbclient.NotebookClient(notebook, timeout=600, resources=folder).execute()
