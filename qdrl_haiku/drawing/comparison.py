"""A picture of how methods compare: curves by task, and numbers of all."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

_NUM_COLUMNS = 3
_MARKERS = ("o", "s", "^", "D", "v", "P", "X")
_LINES = ("-", "--", ":", "-.")
_NUM_MARKED = 10


class Band(NamedTuple):
  """A curve with an interval.

  Attributes:
    steps: [T].
    values: [T].
    low: [T].
    high: [T].
  """

  steps: np.ndarray
  values: np.ndarray
  low: np.ndarray
  high: np.ndarray


Interval = tuple[float, float, float]
"""A value, and the ends of its interval."""
Style = dict[str, Any]
"""Colour, marker and line style of a method, as matplotlib calls them."""


class Bars(NamedTuple):
  """Numbers by which methods are compared.

  Attributes:
    label: of the numbers' axis.
    intervals: by method.
    even: the number of which none is better, if there is one.
  """

  label: str
  intervals: Mapping[str, Interval]
  even: float | None = None


def styles(methods: Sequence[str], palette: Sequence[str]) -> dict[str, Style]:
  """Returns a style of its own for each method.

  Args:
    methods: their names.
    palette: colours that can be told apart.

  Returns:
    Styles by method. The first methods differ in colours and markers; where
    there are more methods than colours, the others differ in line styles or
    markers from those of the same colour.
  """
  found = {}
  for i, method in enumerate(methods):
    turn, place = divmod(i, len(palette))
    again, line = divmod(turn, len(_LINES))
    found[method] = {
      "color": palette[place],
      "marker": _MARKERS[(place + again) % len(_MARKERS)],
      "linestyle": _LINES[line],
    }
  return found


def comparison(
  tasks: Mapping[str, Mapping[str, Band]],
  bars: Mapping[str, Bars],
  label: str,
  palette: Sequence[str],
) -> Figure:
  """Draws a panel per task, and one per number that methods are compared by.

  Args:
    tasks: by task and method, the curves.
    bars: by title, the numbers.
    label: of the curves' values.
    palette: see `styles`.

  Returns:
    The figure, in which a method has one style everywhere.
  """
  curves = [method for of_task in tasks.values() for method in of_task]
  numbers = [method for one in bars.values() for method in one.intervals]
  methods = list(dict.fromkeys([*curves, *numbers]))
  style_of = styles(methods, palette)
  count = len(tasks) + len(bars)
  num_columns = min(_NUM_COLUMNS, count)
  num_rows = math.ceil(count / num_columns)
  figure = Figure(
    figsize=(4.2 * num_columns, 3.2 * num_rows), layout="constrained"
  )
  panels = iter(figure.subplots(num_rows, num_columns, squeeze=False).flat)
  for task, of_task in tasks.items():
    axes = next(panels)
    for method, band in of_task.items():
      style = style_of[method]
      axes.plot(
        band.steps,
        band.values,
        label=method,
        markersize=4,
        markevery=max(1, len(band.steps) // _NUM_MARKED),
        **style,
      )
      axes.fill_between(
        band.steps, band.low, band.high, color=style["color"], alpha=0.2,
        linewidth=0,
      )  # fmt: skip
    axes.set(title=task, xlabel="environment steps per agent", ylabel=label)
  for title, one in bars.items():
    axes = next(panels)
    _draw_intervals(axes, one.intervals, style_of)
    axes.set(title=title, xlabel=one.label)
    if one.even is not None:
      axes.axvline(one.even, color="gray", linewidth=1, linestyle="--")
      axes.set_xlim(-0.02, 1.02)
  for axes in panels:
    axes.set_axis_off()
  figure.legend(
    [Line2D([], [], **style_of[method]) for method in methods],
    methods,
    loc="outside upper center",
    ncols=2 * num_columns,
  )
  return figure


def _draw_intervals(
  axes: Axes, intervals: Mapping[str, Interval], style_of: Mapping[str, Style]
) -> None:
  """Draws intervals, the first one on top."""
  methods: Sequence[str] = list(intervals)[::-1]
  for i, method in enumerate(methods):
    value, low, high = intervals[method]
    color = style_of[method]["color"]
    axes.barh(i, high - low, left=low, color=color, alpha=0.5)
    axes.plot([value, value], [i - 0.4, i + 0.4], color="black")
  axes.set_yticks(range(len(methods)), methods)
