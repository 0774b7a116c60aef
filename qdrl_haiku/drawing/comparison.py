"""A picture of how methods compare: curves by task, and numbers of all."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

_NUM_COLUMNS = 3
_COLORS = tuple(f"C{i}" for i in range(10))


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


def comparison(
  tasks: Mapping[str, Mapping[str, Band]],
  bars: Mapping[str, Mapping[str, Interval]],
  label: str,
  even: str,
) -> Figure:
  """Draws a panel per task, and one per number that methods are compared by.

  Args:
    tasks: by task and method, the curves.
    bars: by title and method, the numbers.
    label: of the curves' values.
    even: the title of the numbers of which 0.5 means that none is better.

  Returns:
    The figure, in which a method has one colour everywhere.
  """
  curves = [method for of_task in tasks.values() for method in of_task]
  numbers = [method for of_title in bars.values() for method in of_title]
  methods = list(dict.fromkeys([*curves, *numbers]))
  colors = {x: _COLORS[i % len(_COLORS)] for i, x in enumerate(methods)}
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
      axes.plot(
        band.steps, band.values, color=colors[method], label=method
      )
      axes.fill_between(
        band.steps, band.low, band.high, color=colors[method], alpha=0.2,
        linewidth=0,
      )  # fmt: skip
    axes.set(title=task, xlabel="environment steps per agent", ylabel=label)
  for title, of_title in bars.items():
    axes = next(panels)
    _draw_intervals(axes, of_title, colors)
    axes.set_title(title)
    if title == even:
      axes.axvline(0.5, color="gray", linewidth=1, linestyle="--")
      axes.set_xlim(-0.02, 1.02)
  for axes in panels:
    axes.set_axis_off()
  figure.legend(
    [Line2D([], [], color=colors[method]) for method in methods],
    methods,
    loc="outside upper center",
    ncols=2 * num_columns,
  )
  return figure


def _draw_intervals(
  axes: Axes, intervals: Mapping[str, Interval], colors: Mapping[str, str]
) -> None:
  """Draws intervals, the first one on top."""
  methods: Sequence[str] = list(intervals)[::-1]
  for i, method in enumerate(methods):
    value, low, high = intervals[method]
    axes.barh(i, high - low, left=low, color=colors[method], alpha=0.5)
    axes.plot([value, value], [i - 0.4, i + 0.4], color="black")
  axes.set_yticks(range(len(methods)), methods)
