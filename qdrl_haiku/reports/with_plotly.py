"""Draws a described figure with plotly: JSON that plotly.js takes."""

import base64
import html
import math
from collections.abc import Iterable, Sequence

import numpy as np

from qdrl_haiku.drawing.figure import Axis, Figure, Heatmap, Panel, Trace

Json = dict[str, object]

_FONT = {"family": "system-ui, sans-serif", "size": 13, "color": "#222222"}
_LEGEND = {
  "orientation": "h", "x": 0, "xanchor": "left", "y": 1, "yanchor": "top",
  "yref": "container",
}  # fmt: skip
_DIGITS = 6


def draw(figure: Figure) -> Json:
  """Returns `data` and `layout`."""
  rows, columns = figure.shape
  size = 13 if rows * columns == 1 else 11
  data: list[Json] = []
  annotations: list[Json] = []
  layout: Json = {
    "height": rows * figure.row_height + 60 * (rows * columns > 1),
    "font": _FONT,
    "paper_bgcolor": "white",
    "plot_bgcolor": "white",
    "hovermode": "closest",
    "legend": _LEGEND,
    # Gaps are as wide as numbers and titles, however many rows there are.
    "grid": {
      "rows": rows, "columns": columns, "pattern": "independent",
      "xgap": 0.22, "ygap": 0.38,
    },
    "margin": {"l": 70, "r": 20, "t": 60, "b": 60},
    "annotations": annotations,
  }  # fmt: skip
  if figure.width is not None:
    layout["width"] = figure.width
  named: set[str] = set()
  for number, panel in enumerate(figure.panels, start=1):
    n = "" if number == 1 else str(number)
    place = {"xaxis": f"x{n}", "yaxis": f"y{n}"}
    layout[f"xaxis{n}"] = _axis(panel.x, size) | {"nticks": 7}
    layout[f"yaxis{n}"] = _axis(panel.y, size) | (
      {"scaleanchor": f"x{n}"} if panel.is_isometric else {}
    )
    annotations.append(_title(panel, n))
    if panel.heatmap is not None:
      data.append(_heatmap(panel.heatmap) | place)
      layout["plot_bgcolor"] = "#dddddd"
      # Under a mouse, nothing may move to make room.
      layout["margin"] = {
        "l": 70, "r": 115, "t": 36, "b": 60, "autoexpand": False
      }  # fmt: skip
    for trace in panel.traces:
      is_new = trace.in_legend and trace.name not in named
      named.update({trace.name} if is_new else ())
      data.append(_trace(trace) | place | {"showlegend": is_new})
  return {"data": data, "layout": layout}


def numbers(values: Iterable[object]) -> list[float | str | None]:
  """Makes numbers short; None of what is neither a finite number nor text."""
  return [
    float(f"{value:.{_DIGITS}g}")
    if isinstance(value, int | float) and math.isfinite(value)
    else value
    if isinstance(value, str)
    else None
    for value in values
  ]


def encoded(values: Sequence[float] | np.ndarray, dtype: str) -> Json:
  """Returns an array as plotly takes it, a third as long as its digits."""
  array = np.ascontiguousarray(values, f"<{dtype}")
  found: Json = {
    "dtype": dtype, "bdata": base64.b64encode(array.tobytes()).decode()
  }  # fmt: skip
  if array.ndim > 1:
    found["shape"] = ", ".join(map(str, array.shape))
  return found


def text(value: object) -> str:
  """Returns text without markup that plotly would take up."""
  return html.escape(str(value), quote=False).replace("\n", "<br>")


def _trace(trace: Trace) -> Json:
  """Returns a line, its points, or an area."""
  sizes = np.asarray(trace.sizes)
  modes = ["lines"] * bool(trace.width) + ["markers"] * bool(sizes.any())
  found: Json = {
    "type": "scatter",
    "mode": "+".join(modes) or "none",
    "x": numbers(trace.x),
    "y": numbers(trace.y),
    "name": text(trace.name),
    "legendgroup": text(trace.name),
    "line": {
      "color": trace.color, "width": trace.width, "dash": trace.dash,
      "shape": "vh" if trace.is_step else "linear",
    },
    "marker": {
      "color": trace.color, "size": sizes.tolist(), "symbol": trace.symbol,
      "line": {"width": 3 * trace.symbol.endswith("-open")},
    },
    "cliponaxis": sizes.ndim == 0,
  }  # fmt: skip
  if trace.is_area:
    found |= {"mode": "none", "fill": "toself", "fillcolor": trace.color}
  if trace.texts:
    found["text"] = [text(x) for x in trace.texts]
  if trace.hover == "skip":
    return found | {"hoverinfo": "skip"}
  if trace.hover:
    found["hovertemplate"] = f"{text(trace.hover)}<extra></extra>"
  return found


def _heatmap(cells: Heatmap) -> Json:
  """Returns the cells of a heat map."""
  rows, columns = cells.values.shape
  dx = (cells.x[1] - cells.x[0]) / columns
  dy = (cells.y[1] - cells.y[0]) / rows
  return {
    "type": "heatmap",
    "z": encoded(cells.values, "f4"),
    "x0": cells.x[0] + dx / 2,
    "dx": dx,
    "y0": cells.y[0] + dy / 2,
    "dy": dy,
    "colorscale": "Viridis",
    "hoverongaps": True,
    "colorbar": {"title": {"text": text(cells.label), "side": "right"}},
    "hovertemplate": "(%{x:.3g}, %{y:.3g})<br>%{z:.4g}<extra></extra>",
  }


def _axis(axis: Axis, size: int) -> Json:
  """Returns an axis."""
  found: Json = {
    "automargin": True,
    "gridcolor": "#e6e6e6",
    "linecolor": "#888888",
    "showline": True,
    "ticks": "outside",
    "zeroline": False,
    "visible": not axis.is_hidden,
    "title": {"text": text(axis.title), "font": {"size": size}, "standoff": 6},
    "tickfont": {"size": size - 1},
  }
  if axis.is_log:
    # Without a format, plotly writes single digits between powers of ten.
    found |= {"type": "log", "tickformat": "~g"}
  if axis.names:
    found |= {
      "range": [-0.5, len(axis.names) - 0.5],
      "tickvals": list(range(len(axis.names))),
      "ticktext": [text(name) for name in axis.names],
    }
  if axis.range is not None:
    found["range"] = list(axis.range)
  return found


def _title(panel: Panel, number: str) -> Json:
  """Returns the title above a panel."""
  return {
    "text": text(panel.title),
    "xref": f"x{number} domain",
    "yref": f"y{number} domain",
    "x": 0,
    "y": 1,
    "yshift": 18,
    "xanchor": "left",
    "showarrow": False,
    "font": {"size": 13},
  }
