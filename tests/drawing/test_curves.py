"""Tests of the pictures of a run, from records written by hand."""

import matplotlib.image
import numpy as np
import pytest

from qdrl_haiku.drawing import curves
from qdrl_haiku.storage.directory import RunDirectory


def _metrics(step, **extra):
  return {
    "generation": step // 10,
    "step": step,
    "eval/episode_return": step + 0.5,
    "training/critic_loss": None if step == 10 else 1.0 / step,
    "training/q_mean": float(step),
  } | extra


@pytest.fixture
def directory(tmp_path):
  return RunDirectory(tmp_path)


def _write_population(directory):
  for step in (10, 20, 30):
    best = float("nan") if step == 20 else step + 1.0
    row = {"pbt/best_return": best, "pbt/mean_return": float(step)}
    directory.append("metrics.jsonl", [_metrics(step, **row)])
    for member in range(3):
      directory.append(
        "pbt_members.jsonl",
        [
          {
            "generation": step // 10,
            "step": step,
            "member": member,
            "return": None if member == 1 else 10.0 * member,
            "hyperparams": {"rate": 10.0 ** -member, "discount": 0.9},
          }
        ],
      )


def _is_a_picture(path):
  """Whether there is more than a background in it."""
  pixels = matplotlib.image.imread(path)[..., :3]
  assert min(pixels.shape[:2]) > 200
  return len(np.unique(pixels.reshape(-1, 3), axis=0)) > 20


def test_a_population_has_curves_diagnostics_and_schedules(directory):
  _write_population(directory)
  files = curves.plot_run(directory)
  assert {path.name for path in files} == {
    "learning_curves.png", "diagnostics.png", "hyperparameters.png"
  }
  assert all(path.parent == directory.path / "plots" for path in files)
  assert all(map(_is_a_picture, files))


def test_a_diverged_members_hyperparameter_does_not_stop_the_plots(directory):
  _write_population(directory)
  rows = directory.rows("pbt_members.jsonl")
  rows[4]["hyperparams"]["rate"] = None
  (directory.path / "pbt_members.jsonl").unlink()
  directory.append("pbt_members.jsonl", rows)
  assert all(map(_is_a_picture, curves.plot_run(directory)))


def test_seeds_have_curves_but_no_schedules(directory):
  for step in (10, 20):
    seeds = {f"eval/episode_return/seed_{i}": float(i) for i in range(3)}
    iqm = {"eval/episode_return_iqm": 1.0}
    directory.append("metrics.jsonl", [_metrics(step, **seeds, **iqm)])
  files = curves.plot_run(directory)
  assert {path.name for path in files} == {
    "learning_curves.png", "diagnostics.png"
  }
  assert all(map(_is_a_picture, files))


def test_a_run_without_rows_has_no_pictures(directory):
  assert curves.plot_run(directory) == []
  assert not (directory.path / "plots").exists()
