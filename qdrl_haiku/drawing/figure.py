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


@dataclasses.dataclass(frozen=True)
class Trace:
  """A line through points, the points, or the area inside of the line.

  Attributes:
    x: of the points; None and NaN break the line.
    y: of the points, likewise.
    name: in the legend.
    color: "#rrggbb", or with two more digits of opacity.
    width: of the line in pixels, 0 for none.
    dash: "solid", "dash", "dot" or "dashdot".
    is_step: whether a value holds from the point before.
    is_area: whether the inside is filled, without a line around it.
    symbol: of the points, as plotly calls it.
    sizes: of the points in pixels, one for all or one for each; 0 hides.
    in_legend: whether the legend names it.
    hover: text at the mouse, with %{x}, %{y} and %{text}; by default the
      name and the numbers, and none if it is "skip".
    texts: what %{text} is of each point.
  """

  x: Sequence[float | str | None] | np.ndarray
  y: Sequence[float | None] | np.ndarray
  name: str = ""
  color: str = BLUE
  width: float = 2
  _: dataclasses.KW_ONLY
  dash: str = "solid"
  is_step: bool = False
  is_area: bool = False
  symbol: str = "circle"
  sizes: float | Sequence[float] = 0
  in_legend: bool = True
  hover: str = ""
  texts: Sequence[object] = ()

  def numbers(self, axis: str) -> np.ndarray:
    """Returns x or y, NaN where the line breaks; names of x as they are."""
    values = self.x if axis == "x" else self.y
    if any(isinstance(value, str) for value in values):
      return np.array(values, object)
    return np.array([np.nan if x is None else x for x in values], float)


class Heatmap(NamedTuple):
  """Coloured cells between the edges x and y; NaN stays grey.

  Attributes:
    values: float [rows, columns], the lowest row first.
    x: the left and the right edge.
    y: the lower and the upper edge.
    label: of the values.
  """

  values: np.ndarray
  x: tuple[float, float]
  y: tuple[float, float]
  label: str


class Axis(NamedTuple):
  """One axis of a panel.

  Attributes:
    title: with the unit.
    is_log: whether it is logarithmic.
    names: what stands at 0, 1, ... instead of numbers, if given.
    range: its ends, by default those of what is drawn.
    is_hidden: whether it has no line, ticks and title.
  """

  title: str = ""
  is_log: bool = False
  names: Sequence[str] = ()
  range: tuple[float, float] | None = None
  is_hidden: bool = False

  @property
  def ends(self) -> tuple[float, float] | None:
    """Its ends, if they are given or follow from the names."""
    if self.names and self.range is None:
      return -0.5, len(self.names) - 0.5
    return self.range


class Panel(NamedTuple):
  """One plot.

  Attributes:
    title: above it.
    traces: from the lowest to the uppermost.
    x: the horizontal axis.
    y: the vertical axis.
    heatmap: under the traces.
    is_isometric: whether both axes have the same scale.
  """

  title: str
  traces: Sequence[Trace]
  x: Axis = Axis()
  y: Axis = Axis()
  heatmap: Heatmap | None = None
  is_isometric: bool = False


class Figure(NamedTuple):
  """Panels in rows, with one legend.

  Attributes:
    panels: at least one.
    row_height: in pixels.
    columns: panels in a full row.
    width: in pixels, by default that of the page.
  """

  panels: Sequence[Panel]
  row_height: int = 250
  columns: int = 3
  width: int | None = None

  @property
  def shape(self) -> tuple[int, int]:
    """Rows and columns that have panels."""
    columns = min(len(self.panels), self.columns)
    return -(-len(self.panels) // columns), columns


def plot(
  traces: Sequence[Trace], x: str, y: str, height: int = 420
) -> Figure:
  """Returns a figure of one panel with these titles of axes."""
  return Figure([Panel("", traces, Axis(x), Axis(y))], height)


def rectangle(
  left: float, low: float, right: float, high: float, color: str
) -> Trace:
  """Returns a filled rectangle."""
  return Trace(
    [left, right, right, left], [low, low, high, high], color=color,
    is_area=True, in_legend=False, hover="skip",
  )  # fmt: skip


def decimated(length: int) -> np.ndarray:
  """Picks at most a hundred steps of an episode for a line."""
  num = min(length, _MOST_POINTS)
  return np.linspace(0, length - 1, num).round().astype(int)
