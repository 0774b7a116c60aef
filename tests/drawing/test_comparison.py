"""Tests of how methods are told apart in the picture of a comparison."""

import itertools

import numpy as np
import pytest
from matplotlib.colors import to_rgb

from qdrl_haiku.drawing import comparison
from qdrl_haiku.reports import figure

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


@pytest.mark.parametrize("num_methods", [1, 7, 8, 20, 60])
def test_methods_have_styles_of_their_own(num_methods):
  styles = comparison.styles(_methods(num_methods), figure.PALETTE)
  assert list(styles) == _methods(num_methods)
  assert len({tuple(style.items()) for style in styles.values()}) == num_methods


@pytest.mark.parametrize(
  "seen_by",
  [np.eye(3), _DEUTERANOPIA, _PROTANOPIA],
  ids=["all cones", "without green", "without red"],
)
def test_no_two_of_few_methods_have_like_colours(seen_by):
  num = len(figure.PALETTE)
  styles = comparison.styles(_methods(num), figure.PALETTE)
  colors = [_lab(style["color"], seen_by) for style in styles.values()]
  for first, second in itertools.combinations(colors, 2):
    assert np.linalg.norm(first - second) > 15
  # In print without colours markers differ.
  assert len({style["marker"] for style in styles.values()}) == num


def test_curves_bars_and_legend_show_one_style_and_axes_what_they_count():
  methods = _methods(9)
  steps = np.arange(3.0)
  band = comparison.Band(steps, steps, steps, steps)
  drawn = comparison.comparison(
    {"maze": dict.fromkeys(methods, band)},
    {"final": comparison.Bars("return", dict.fromkeys(methods, (1.0, 0, 2)))},
    "best return",
    figure.PALETTE,
  )
  styles = comparison.styles(methods, figure.PALETTE)
  maze, final = drawn.axes[:2]
  (legend,) = drawn.legends
  assert [x.get_text() for x in legend.get_texts()] == methods
  for method, curve, entry in zip(
    methods, maze.lines, legend.get_lines(), strict=True
  ):
    for line in (curve, entry):
      assert {
        "color": line.get_color(),
        "marker": line.get_marker(),
        "linestyle": line.get_linestyle(),
      } == styles[method]
  assert maze.get_xlabel() == "environment steps per agent"
  assert (maze.get_ylabel(), final.get_xlabel()) == ("best return", "return")
