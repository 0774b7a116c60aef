"""Describes figures, whatever draws them: panels of lines, areas and cells.

`with_matplotlib` draws them as pictures, `reports.with_plotly` on a page.
"""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

STEPS = "environment steps per agent"
RETURN = "episode return"

# Told apart by people who are colour-blind too (Okabe and Ito, 2008).
BLACK, BLUE, ORANGE, GREEN = "#000000", "#0072b2", "#d55e00", "#009e73"
PURPLE, SKY, AMBER = "#cc79a7", "#56b4e9", "#e69f00"
PALETTE = (BLUE, ORANGE, GREEN, PURPLE, AMBER, SKY, BLACK)
# For lines of which there are many, and for walls.
PALE, GREY = "#a6c3dc", "#888888"

_MOST_POINTS = 100
# Of curves that are compared.
_SYMBOLS = (
  "circle", "square", "triangle-up", "diamond", "triangle-down", "cross", "x")
_DASHES = ("solid", "dash", "dot", "dashdot")
_NUM_MARKED = 10


@dataclasses.dataclass(frozen=True)
class Trace:
  """A line through points, the points, or the area inside of the line."""

  # None and NaN break the line.
  x: Sequence[float | str | None] | np.ndarray
  y: Sequence[float | None] | np.ndarray
  name: str = ""
  color: str = BLUE  # Or with two more digits of opacity.
  width: float = 2  # Of the line in pixels, 0 for none.
  _: dataclasses.KW_ONLY
  dash: str = "solid"  # Or "dash", "dot" or "dashdot".
  is_area: bool = False  # Whether it's filled, without a line around it.
  symbol: str = "circle"  # Of the points, as plotly calls it.
  # Of the points in pixels; 0 hides one, unless a line's value stands alone.
  sizes: float | Sequence[float] = 0
  in_legend: bool = True
  # Text at the mouse, with %{x}, %{y} and %{text} (of `texts`); by default the
  # name and the numbers, and none if it is "skip".
  hover: str = ""
  texts: Sequence[object] = ()

  def numbers(self, axis: str) -> np.ndarray:
    """Returns x or y, with NaN where the line breaks, or names of x."""
    values = self.x if axis == "x" else self.y
    if any(isinstance(value, str) for value in values):
      return np.array(values, object)
    return np.array([np.nan if x is None else x for x in values], float)

  def point_sizes(self) -> np.ndarray:
    """Returns the points' sizes as drawn: [] for all, or [N]."""
    sizes = np.asarray(self.sizes, float)
    known = np.pad(np.isfinite(self.numbers("y")), 1)
    # Hidden, and no line goes through it.
    is_alone = known[1:-1] & ~known[:-2] & ~known[2:] & (sizes == 0)
    return np.where(is_alone, 3 * self.width, sizes) if any(is_alone) else sizes


class Heatmap(NamedTuple):
  """Coloured cells between the edges x and y; NaN stays grey."""

  values: np.ndarray  # [rows, columns], the lowest row first.
  x: tuple[float, float]
  y: tuple[float, float]
  label: str  # Of the values.


class Axis(NamedTuple):
  """One axis of a panel."""

  title: str = ""  # With the unit.
  is_log: bool = False
  names: Sequence[str] = ()  # What stands at 0, 1, ... instead of numbers.
  range: tuple[float, float] | None = None  # By default that of what is drawn.
  is_hidden: bool = False  # Whether it has no line, ticks and title.

  @property
  def ends(self) -> tuple[float, float] | None:
    """The axis's ends, if they are given or follow from names of points."""
    if self.names and self.range is None:
      return -0.5, len(self.names) - 0.5
    return self.range


class Panel(NamedTuple):
  """One plot, its traces from the lowest to the uppermost."""

  title: str
  traces: Sequence[Trace]
  x: Axis = Axis()
  y: Axis = Axis()
  heatmap: Heatmap | None = None  # Under the traces.
  is_isometric: bool = False  # Whether both axes have the same scale.


class Figure(NamedTuple):
  """Panels in rows, at least one, with one legend."""

  panels: Sequence[Panel]
  row_height: int = 250  # In pixels.
  columns: int = 3  # Panels in a full row.
  width: int | None = None  # In pixels, by default that of the page.

  @property
  def shape(self) -> tuple[int, int]:
    """Rows and columns that have panels."""
    columns = min(len(self.panels), self.columns)
    return -(-len(self.panels) // columns), columns


def plot_figure(traces: Sequence[Trace], x: str, y: str) -> Figure:
  """Returns a figure of one panel, `traces` on axes with titles `x` and `y`."""
  return Figure([Panel("", traces, Axis(x), Axis(y))], 420)


def figure_axes(
  lower: np.ndarray, upper: np.ndarray, names: Sequence[str] = ()
) -> tuple[Axis, Axis]:
  """Returns the first two of D axes, from `lower` to `upper`, [D].

  Their titles are the first of `names`; without names they are hidden.
  """
  titles = names[:2] or ("", "")
  x, y = (
    Axis(str(title), range=(float(low), float(high)), is_hidden=not names)
    for title, low, high in zip(titles, lower[:2], upper[:2], strict=True))
  return x, y


def figure_rectangle(
  left: float, low: float, right: float, high: float, color: str
) -> Trace:
  """Returns a filled rectangle of a `color`, in the units of the axes.

  It goes from `left` to `right`, and from `low` to `high`.
  """
  return Trace(
    [left, right, right, left], [low, low, high, high], color=color,
    is_area=True, in_legend=False, hover="skip")


def decimate_for_figure(length: int) -> np.ndarray:
  """Picks at most a hundred steps of an episode for a line."""
  num = min(length, _MOST_POINTS)
  return np.linspace(0, length - 1, num).round().astype(int)


class Series(NamedTuple):
  """A metric over the T steps of a run, or of several."""

  name: str  # Of the seed, or of the runs.
  generations: Sequence[int]
  steps: Sequence[float] | np.ndarray  # Environment steps per agent by then.
  values: Sequence[float] | np.ndarray
  # The ends of their intervals; the values without one.
  low: Sequence[float] | np.ndarray
  high: Sequence[float] | np.ndarray


def comparison_curve(series: Series, number: int) -> list[Trace]:
  """Describes the curve of a method by number, with about ten symbols.

  The first seven differ in colour and symbol; later ones differ from those of
  the same colour in line style or symbol.
  """
  name, steps = series.name, list(series.steps)
  turn, place = divmod(number, len(PALETTE))
  again, line = divmod(turn, len(_DASHES))
  stride = max(1, len(steps) // _NUM_MARKED)
  curve = Trace(
    steps, list(series.values), name, PALETTE[place], dash=_DASHES[line],
    symbol=_SYMBOLS[(place + again) % len(_SYMBOLS)],
    sizes=[7 * (i % stride == 0) for i in range(len(steps))])
  area = Trace(
    [*steps, *reversed(steps)], [*series.high, *reversed(series.low)], name,
    f"{PALETTE[place]}40", is_area=True, in_legend=False, hover="skip")
  is_wide = any(a != b for a, b in zip(series.low, series.high, strict=True))
  return [area, curve] if is_wide else [curve]
