"""Tests of how methods are told apart in the picture of a comparison."""

import itertools

import numpy as np
import pytest
from matplotlib.colors import to_rgb

from qdrl_haiku.drawing import comparison, figure

# Linear RGB as people without green or red cones see it (Machado et al., 2009).
_DEUTERANOPIA = np.array([
  [0.367322, 0.860646, -0.227968],
  [0.280085, 0.672501, 0.047413],
  [-0.011820, 0.042940, 0.968881],
])  # fmt: skip
_PROTANOPIA = np.array([
  [0.152286, 1.052583, -0.204868],
  [0.114503, 0.786281, 0.099216],
  [-0.003882, -0.048116, 1.051998],
])  # fmt: skip
_TO_XYZ = np.array([
  [0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]
])  # fmt: skip


def _lab(color, seen_by):
  """The colour in CIELAB, in which a distance of 2 is just seen."""
  rgb = np.array(to_rgb(color))
  linear = np.where(rgb > 0.04045, ((rgb + 0.055) / 1.055) ** 2.4, rgb / 12.92)
  x, y, z = _TO_XYZ @ np.clip(seen_by @ linear, 0, 1) / (0.9505, 1, 1.089)
  fx, fy, fz = (
    np.cbrt(v) if v > 0.008856 else 7.787 * v + 16 / 116 for v in (x, y, z)
  )
  return np.array([116 * fy - 16, 500 * (fx - fy), 200 * (fy - fz)])


def _methods(num):
  return [f"method {i}" for i in range(num)]


@pytest.mark.parametrize("num_methods", [1, 7, 8, 60])
def test_methods_have_styles_of_their_own(num_methods):
  styles = comparison.styles(_methods(num_methods))
  assert list(styles) == _methods(num_methods)
  assert len(set(styles.values())) == num_methods


@pytest.mark.parametrize(
  "seen_by",
  [np.eye(3), _DEUTERANOPIA, _PROTANOPIA],
  ids=["all cones", "without green", "without red"],
)
def test_no_two_of_few_methods_have_like_colours(seen_by):
  num = len(figure.PALETTE)
  styles = comparison.styles(_methods(num)).values()
  colors = [_lab(style.color, seen_by) for style in styles]
  for first, second in itertools.combinations(colors, 2):
    assert np.linalg.norm(first - second) > 15
  # In print without colours symbols differ.
  assert len({style.symbol for style in styles}) == num


def test_curves_bars_and_legend_show_one_style_and_axes_what_they_count():
  methods = _methods(9)
  steps = np.arange(40.0)
  band = comparison.Band(steps, steps, steps - 1, steps + 1)
  drawn = comparison.comparison(
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
