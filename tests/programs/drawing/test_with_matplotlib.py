"""Tests of what matplotlib makes of described figures."""

import numpy as np
import pytest

from qdrl_haiku.programs.drawing import figure, with_matplotlib
from qdrl_haiku.programs.drawing.figure import Axis, Figure, Panel, Trace
from qdrl_haiku.programs.reports import with_plotly


def test_traces_are_drawn_as_they_are_described():
  broken = Trace(
    [0, 1, None, 2], [1.0, 2.0, None, 3.0], "a", sizes=[0, 4, 0, 4])
  dotted = Trace([0, 1], [5.0, 6.0], "b <c> $d$", "#000000", 4, dash="dot")
  area = figure.figure_rectangle(0, 1, 2, 3, "#0072b240")
  described = figure.plot_figure([broken, dotted, area], "x", "y [m]")
  (axes,) = with_matplotlib.draw_with_matplotlib(described).axes
  first, second = axes.lines
  np.testing.assert_array_equal(
    first.get_xydata(), [[0, 1], [1, 2], [np.nan, np.nan], [2, 3]])
  assert (first.get_color(), first.get_linestyle()) == (figure.BLUE, "-")
  assert (first.get_markevery(), first.get_markersize()) == ([1, 3], 3)
  assert (second.get_linewidth(), second.get_linestyle()) == (3, ":")
  (patch,) = axes.patches
  assert patch.get_facecolor()[-1] == pytest.approx(0x40 / 0xFF)
  np.testing.assert_array_equal(
    patch.get_xy()[:4], [[0, 1], [2, 1], [2, 3], [0, 3]])
  assert (axes.get_xlabel(), axes.get_ylabel()) == ("x", "y [m]")
  (legend,) = axes.figure.legends
  names = [text.get_text() for text in legend.get_texts()]
  assert names == ["a", r"b <c> \$d\$"]


def test_a_value_through_which_no_line_goes_is_a_point():
  nan = float("nan")
  trace = Trace(range(6), [1.0, None, 2.0, 3.0, nan, 4.0])
  described = figure.plot_figure([trace], "x", "y")
  (axes,) = with_matplotlib.draw_with_matplotlib(described).axes
  assert axes.lines[0].get_markevery() == [0, 5]
  line = with_plotly.draw_with_plotly(described)["data"][0]
  assert line["mode"] == "lines+markers"
  assert line["marker"]["size"] == [6, 0, 0, 0, 0, 6]


def test_panels_are_drawn_as_they_are_described():
  def panel(title, *y, **axis):
    return Panel(title, [Trace(range(len(y)), y, "one")], y=Axis(**axis))

  picture = with_matplotlib.draw_with_matplotlib(
    Figure([
      panel("first", 1.0, 10.0, is_log=True),
      panel("second", 0.0, 1.0, names=["low", "high"]),
      panel("third", 1.0, range=(0, 5)), panel("fourth", 1.0)]))
  titles = [axes.get_title() for axes in picture.axes]
  assert titles == ["first", "second", "third", "fourth"]
  scales = [axes.get_yscale() for axes in picture.axes]
  assert scales == ["log", *["linear"] * 3]
  labels = [label.get_text() for label in picture.axes[1].get_yticklabels()]
  assert labels == ["low", "high"]
  assert picture.axes[2].get_ylim() == (0, 5)
  # One name needs no legend.
  assert not picture.legends
