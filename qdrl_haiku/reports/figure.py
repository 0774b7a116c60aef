"""Makes figures of a report: their style, and numbers as JSON.

A figure is what plotly draws, as a plain dict of `data` and `layout`.
"""

import html
import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

Figure = dict[str, Any]
Trace = dict[str, Any]

STEPS = "environment steps per agent"
RETURN = "episode return"

# Told apart by people who are colour-blind too (Okabe and Ito, 2008).
BLACK, BLUE, ORANGE, GREEN = "#000000", "#0072b2", "#d55e00", "#009e73"
PURPLE, SKY, AMBER = "#cc79a7", "#56b4e9", "#e69f00"
PALETTE = (BLUE, ORANGE, GREEN, PURPLE, AMBER, SKY, BLACK)
# Of those of whom there are many.
PALE = "#a6c3dc"

_FONT = {"family": "system-ui, sans-serif", "size": 13, "color": "#222222"}
_AXIS = {
  "automargin": True,
  "gridcolor": "#e6e6e6",
  "linecolor": "#888888",
  "showline": True,
  "ticks": "outside",
  "zeroline": False,
}
_PANEL_HEIGHT = 250
_COLUMNS = 3
_DIGITS = 6
_MOST_POINTS = 100


class Panel(NamedTuple):
  """One of several small plots.

  Attributes:
    title: what is drawn, and its unit.
    traces: of it.
    is_log: whether the vertical axis is logarithmic.
    names: what stands on it at 0, 1, ... instead of numbers, if given.
  """

  title: str
  traces: list[Trace]
  is_log: bool = False
  names: Sequence[str] = ()


def numbers(values: Iterable[Any]) -> list[float | None]:
  """Makes numbers short, and None of what is no finite number."""
  return [
    float(f"{value:.{_DIGITS}g}")
    if isinstance(value, int | float) and math.isfinite(value)
    else None
    for value in values
  ]


def decimated(length: int) -> np.ndarray:
  """Picks steps of an episode for a line."""
  num = min(length, _MOST_POINTS)
  return np.linspace(0, length - 1, num).round().astype(int)


def text(value: Any) -> str:
  """Returns a user's text without markup that plotly would take up."""
  return html.escape(str(value), quote=False)


def line(
  x: Sequence[Any],
  y: Iterable[Any],
  name: str,
  color: str,
  width: float = 2,
  **settings: Any,
) -> Trace:
  """Returns a line, broken where there is no finite number."""
  return {
    "type": "scatter",
    "mode": "lines",
    "x": list(x),
    "y": numbers(y),
    "name": text(name),
    "line": {"color": color, "width": width},
  } | settings


def plot(
  traces: list[Trace], x_title: str, y_title: str, height: int = 420
) -> Figure:
  """Returns one plot."""
  layout = _layout(height) | {
    "xaxis": axis(x_title),
    "yaxis": axis(y_title),
    "margin": {"l": 70, "r": 20, "t": 40, "b": 60},
  }
  return {"data": traces, "layout": layout}


def panels(
  items: Sequence[Panel],
  x_title: str,
  y_title: str = "",
  height: int = _PANEL_HEIGHT,
) -> Figure:
  """Puts small plots in rows of three, with one legend."""
  rows = -(-len(items) // _COLUMNS)
  layout = _layout(height * rows + 60) | {
    # Gaps are as wide as numbers and titles, however many rows there are.
    "grid": {
      "rows": rows,
      "columns": _COLUMNS,
      "pattern": "independent",
      "xgap": 0.22,
      "ygap": 0.38,
    },
    "margin": {"l": 60, "r": 20, "t": 60, "b": 60},
    "annotations": [],
  }
  traces, named = [], set()
  for number, panel in enumerate(items, start=1):
    suffix = "" if number == 1 else str(number)
    layout[f"xaxis{suffix}"] = axis(x_title, 11) | {"nticks": 5}
    layout[f"yaxis{suffix}"] = axis(y_title, 11) | (
      _log_axis(panel.traces) if panel.is_log else _named_axis(panel.names)
    )
    layout["annotations"].append(
      {
        "text": panel.title,
        "xref": f"x{suffix} domain",
        "yref": f"y{suffix} domain",
        "x": 0,
        "y": 1,
        "yshift": 18,
        "xanchor": "left",
        "showarrow": False,
        "font": {"size": 13},
      }
    )
    for trace in panel.traces:
      name = trace.get("name")
      is_new = name not in named and trace.get("showlegend", True)
      if is_new:
        named.add(name)
      traces.append(
        trace
        | {
          "xaxis": f"x{suffix}",
          "yaxis": f"y{suffix}",
          "legendgroup": name,
          "showlegend": is_new,
        }
      )
  return {"data": traces, "layout": layout}


def axis(title: str, size: int = 13) -> dict[str, Any]:
  """Returns an axis."""
  return _AXIS | {
    "title": {"text": title, "font": {"size": size}, "standoff": 6},
    "tickfont": {"size": size - 1},
  }


def _log_axis(traces: Sequence[Trace]) -> dict[str, Any]:
  """Makes a logarithmic axis; plotly would write single digits at ticks."""
  values = [y for trace in traces for y in trace["y"] if y and y > 0] or [1.0]
  low, high = math.log10(min(values)), math.log10(max(values))
  steps: tuple[int, ...] = (1, 2, 5)
  if high - low < 1:
    steps = (1, 2, 3, 5, 7)
  elif high - low > 2:
    steps = (1,)
  ticks = [
    step * 10.0**power
    for power in range(math.floor(low) - 1, math.ceil(high) + 1)
    for step in steps
  ]
  return {
    "type": "log",
    "tickvals": numbers(ticks),
    "ticktext": [f"{tick:g}" for tick in ticks],
  }


def _named_axis(names: Sequence[str]) -> dict[str, Any]:
  """Makes an axis of a few names; an ordinary one if there are none."""
  if not names:
    return {}
  return {
    "range": [-0.5, len(names) - 0.5],
    "tickvals": list(range(len(names))),
    "ticktext": [text(name) for name in names],
  }


def _layout(height: int) -> dict[str, Any]:
  return {
    "height": height,
    "font": _FONT,
    "paper_bgcolor": "white",
    "plot_bgcolor": "white",
    "hovermode": "closest",
    # The right belongs to the buttons.
    "legend": {
      "orientation": "h",
      "x": 0,
      "xanchor": "left",
      "y": 1,
      "yanchor": "top",
      "yref": "container",
    },
  }
