"""Tests of how methods are told apart in the picture of a comparison."""

import numpy as np
from matplotlib.colors import to_rgb

from qdrl_haiku.drawing import comparison


def _methods(num):
  return [f"method {i}" for i in range(num)]


def test_curves_bars_and_legend_show_one_style_and_axes_what_they_count():
  methods = _methods(9)
  steps = np.arange(40.0)
  band = comparison.Band(steps, steps, steps - 1, steps + 1)
  drawn = comparison.draw_comparison(
    {"maze": dict.fromkeys(methods, band)},
    {"final": comparison.Bars("return", dict.fromkeys(methods, (1.0, 0, 2)))},
    "best return",
  )
  maze, final = drawn.axes
  (legend,) = drawn.legends
  assert [x.get_text() for x in legend.get_texts()] == methods

  def look(line):
    return line.get_color(), line.get_marker(), line.get_linestyle()

  looks = [look(line) for line in maze.lines]
  assert len(set(looks)) == 9
  assert looks == [look(line) for line in legend.get_lines()]
  # Bands, and the first bar on top.
  assert len(maze.patches) == 9
  colors = [patch.get_facecolor()[:3] for patch in final.patches]
  assert colors[::-1] == [to_rgb(color) for color, *_ in looks]
  assert [x.get_text() for x in final.get_yticklabels()] == methods[::-1]
  # A symbol at about ten points.
  assert len(maze.lines[0].get_markevery()) == 10
  assert maze.get_xlabel() == "environment steps per agent"
  assert (maze.get_ylabel(), final.get_xlabel()) == ("best return", "return")
