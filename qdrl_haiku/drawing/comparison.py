"""A picture of how methods compare: curves by task, and numbers of all."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from matplotlib import figure as matplotlib_figure

from qdrl_haiku.drawing import figure as figure_lib
from qdrl_haiku.drawing import with_matplotlib
from qdrl_haiku.drawing.figure import BLACK, GREY, PALETTE, Axis, Panel, Trace

_SYMBOLS = (
  "circle", "square", "triangle-up", "diamond", "triangle-down", "cross", "x"
)  # fmt: skip
_DASHES = ("solid", "dash", "dot", "dashdot")
_NUM_MARKED = 10


class Band(NamedTuple):
  """A curve with an interval: T steps, values, and the ends of intervals."""

  steps: Sequence[float] | np.ndarray
  values: Sequence[float] | np.ndarray
  low: Sequence[float] | np.ndarray
  high: Sequence[float] | np.ndarray


Interval = tuple[float, float, float]
"""A value, and the ends of its interval."""


class Style(NamedTuple):
  """Holds a method's colour, symbol, and kind of line."""

  color: str
  symbol: str
  dash: str


class Bars(NamedTuple):
  """Numbers by which methods are compared, `even` where they are equal."""

  label: str
  intervals: Mapping[str, Interval]
  even: float | None = None


def comparison_styles(methods: Sequence[str]) -> dict[str, Style]:
  """Returns a style of its own for each method.

  The first methods differ in colours and symbols, more of them in line styles
  or symbols from those of the same colour.
  """
  found = {}
  for i, method in enumerate(methods):
    turn, place = divmod(i, len(PALETTE))
    again, line = divmod(turn, len(_DASHES))
    symbol = _SYMBOLS[(place + again) % len(_SYMBOLS)]
    found[method] = Style(PALETTE[place], symbol, _DASHES[line])
  return found


def comparison_curve(name: str, band: Band, style: Style) -> list[Trace]:
  """Describes a curve on its interval, with a symbol at about ten points."""
  steps = list(band.steps)
  stride = max(1, len(steps) // _NUM_MARKED)
  sizes = [7 * (i % stride == 0) for i in range(len(steps))]
  line = Trace(
    steps, list(band.values), name, style.color, dash=style.dash,
    symbol=style.symbol, sizes=sizes,
  )  # fmt: skip
  area = Trace(
    [*steps, *reversed(steps)], [*band.high, *reversed(band.low)], name,
    f"{style.color}40", is_area=True, in_legend=False, hover="skip",
  )  # fmt: skip
  is_wide = any(a != b for a, b in zip(band.low, band.high, strict=True))
  return [area, line] if is_wide else [line]


def draw_comparison(
  tasks: Mapping[str, Mapping[str, Band]], bars: Mapping[str, Bars], label: str
) -> matplotlib_figure.Figure:
  """Draws a panel per task, and one per number that methods are compared by.

  Args:
    tasks: by task and method, the curves.
    bars: by title, the numbers.
    label: of the curves' values.

  Returns:
    The figure, in which a method has one style everywhere.
  """
  curves = [method for of_task in tasks.values() for method in of_task]
  numbers = [method for one in bars.values() for method in one.intervals]
  style_of = comparison_styles(list(dict.fromkeys([*curves, *numbers])))
  panels = []
  for task, of_task in tasks.items():
    traces: list[Trace] = []
    for method, band in of_task.items():
      traces += comparison_curve(method, band, style_of[method])
    panels.append(Panel(task, traces, Axis(figure_lib.STEPS), Axis(label)))
  panels += [_bars(title, one, style_of) for title, one in bars.items()]
  return with_matplotlib.draw_with_matplotlib(figure_lib.Figure(panels, 290))


def _bars(title: str, bars: Bars, style_of: Mapping[str, Style]) -> Panel:
  """Describes intervals, the first one on top."""
  methods = list(bars.intervals)[::-1]
  traces = []
  for i, method in enumerate(methods):
    value, low, high = bars.intervals[method]
    color = f"{style_of[method].color}80"
    traces += [
      figure_lib.figure_rectangle(low, i - 0.4, high, i + 0.4, color),
      Trace([value] * 2, [i - 0.4, i + 0.4], "", BLACK, in_legend=False),
    ]
  x, y = Axis(bars.label), Axis(names=methods)
  if bars.even is not None:
    x = x._replace(range=(-0.02, 1.02))
    even, ends = [bars.even] * 2, [-0.5, len(methods) - 0.5]
    traces.append(Trace(even, ends, color=GREY, dash="dash", in_legend=False))
  return Panel(title, traces, x, y)
