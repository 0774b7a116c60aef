"""Tests of a run's pictures, from records written by hand."""

import matplotlib.image
import numpy as np
import pytest

from qdrl_haiku.reports import figure, pictures
from qdrl_haiku.storage.directory import RunDirectory
from tests.reports import common


def _is_a_picture(path):
  """Whether there is more than a background in it."""
  pixels = matplotlib.image.imread(path)[..., :3]
  assert min(pixels.shape[:2]) > 200
  return len(np.unique(pixels.reshape(-1, 3), axis=0)) > 20


def test_a_population_has_curves_diagnostics_and_schedules(tmp_path):
  common.write_population(tmp_path)
  files = pictures.plot_run(tmp_path)
  assert {path.name for path in files} == {
    "learning_curves.png", "diagnostics.png", "hyperparameters.png"
  }  # fmt: skip
  assert all(path.parent == tmp_path / "plots" for path in files)
  assert all(map(_is_a_picture, files))


def test_a_diverged_members_numbers_do_not_stop_the_pictures(tmp_path):
  common.write_population(tmp_path)
  directory = RunDirectory(tmp_path)
  rows = directory.rows("pbt_members.jsonl")
  rows[4]["hyperparams"]["discount"] = rows[5]["return"] = None
  (tmp_path / "pbt_members.jsonl").unlink()
  directory.append("pbt_members.jsonl", rows)
  assert len(pictures.plot_run(tmp_path)) == 3


def test_a_run_without_rows_has_no_pictures(tmp_path):
  RunDirectory(tmp_path).begin(common.settings())
  assert pictures.plot_run(tmp_path) == []
  assert not (tmp_path / "plots").exists()


def test_a_line_is_drawn_as_it_is_described():
  broken = figure.line([0, 1, None, 2], [1.0, 2.0, None, 3.0], "a", "#0072b2")
  steps = figure.line([0, 1], [5.0, 6.0], "b <c> $d$", "#000000", 4)
  steps["line"]["shape"] = "vh"
  (axes,) = pictures.draw(figure.plot([broken, steps], "x", "y [m]")).axes
  first, second = axes.lines
  np.testing.assert_array_equal(
    first.get_xydata(), [[0, 1], [1, 2], [np.nan, np.nan], [2, 3]]
  )
  assert (first.get_color(), first.get_drawstyle()) == ("#0072b2", "default")
  assert (second.get_linewidth(), second.get_drawstyle()) == (3, "steps-pre")
  assert (axes.get_xlabel(), axes.get_ylabel()) == ("x", "y [m]")
  (legend,) = axes.figure.legends
  assert [text.get_text() for text in legend.get_texts()] == [
    "a", r"b <c> \$d\$"
  ]  # fmt: skip


def test_panels_are_drawn_as_they_are_described():
  def line(*y):
    return figure.line(range(len(y)), y, "one", figure.BLUE)

  panels = [
    figure.Panel("first", [line(1.0, 10.0)], is_log=True),
    figure.Panel("second", [line(0.0, 1.0)], names=["low", "high"]),
    *[figure.Panel("more", [line(1.0)])] * 2,
  ]
  picture = pictures.draw(figure.panels(panels, "steps"))
  drawn = [axes for axes in picture.axes if axes.axison]
  assert [axes.get_title("left") for axes in drawn] == [
    "first", "second", "more", "more"
  ]  # fmt: skip
  assert [axes.get_yscale() for axes in drawn] == ["log", *["linear"] * 3]
  labels = [label.get_text() for label in drawn[1].get_yticklabels()]
  assert labels == ["low", "high"]
  # One name needs no legend.
  assert not picture.legends


@pytest.mark.parametrize("size", [6, [0, 0, 8]])
def test_markers_and_areas_are_drawn_too(size):
  trace = figure.line(
    [0, 1, 2], [1, 2, 3], "", figure.BLUE, mode="lines+markers",
    marker={"size": size},
  )  # fmt: skip
  area = figure.line(
    [0, 1, 1, 0], [0, 0, 1, 1], "", figure.BLUE, fill="toself",
    fillcolor="#0072b240",
  )  # fmt: skip
  (axes,) = pictures.draw(figure.plot([area, trace], "", "")).axes
  (points,) = axes.collections
  np.testing.assert_allclose(
    np.broadcast_to(points.get_sizes(), 3),
    (0.75 * np.broadcast_to(size, 3)) ** 2,
  )
  (patch,) = axes.patches
  assert patch.get_facecolor()[-1] == pytest.approx(0x40 / 0xFF)
