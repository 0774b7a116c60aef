"""Methods, or groups of runs, told apart: a style and a curve for each."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from qdrl_haiku.programs.drawing.figure import PALETTE, Trace

_SYMBOLS = (
  "circle", "square", "triangle-up", "diamond", "triangle-down", "cross", "x")
_DASHES = ("solid", "dash", "dot", "dashdot")
_NUM_MARKED = 10


class Series(NamedTuple):
  """A metric over the T steps of a run, or of several."""

  name: str  # Of the seed, or of the runs.
  generations: Sequence[int]
  steps: Sequence[float] | np.ndarray  # Environment steps per agent by then.
  values: Sequence[float] | np.ndarray
  # The ends of their intervals; the values without one.
  low: Sequence[float] | np.ndarray
  high: Sequence[float] | np.ndarray


class Style(NamedTuple):
  """Holds a method's colour, symbol, and kind of line."""

  color: str
  symbol: str
  dash: str

  @classmethod
  def of(cls, number: int) -> "Style":
    """Returns the style of the method with a number.

    The first seven differ in colour and symbol; later ones differ from those of
    the same colour in line style or symbol.
    """
    turn, place = divmod(number, len(PALETTE))
    again, line = divmod(turn, len(_DASHES))
    symbol = _SYMBOLS[(place + again) % len(_SYMBOLS)]
    return cls(PALETTE[place], symbol, _DASHES[line])


def comparison_curve(series: Series, style: Style) -> list[Trace]:
  """Describes a curve on its interval, with a symbol at about ten points."""
  name, steps = series.name, list(series.steps)
  stride = max(1, len(steps) // _NUM_MARKED)
  sizes = [7 * (i % stride == 0) for i in range(len(steps))]
  line = Trace(
    steps, list(series.values), name, style.color, dash=style.dash,
    symbol=style.symbol, sizes=sizes)
  area = Trace(
    [*steps, *reversed(steps)], [*series.high, *reversed(series.low)], name,
    f"{style.color}40", is_area=True, in_legend=False, hover="skip")
  is_wide = any(a != b for a, b in zip(series.low, series.high, strict=True))
  return [area, line] if is_wide else [line]
