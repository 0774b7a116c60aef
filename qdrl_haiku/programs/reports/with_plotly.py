"""Draws a described figure with plotly: JSON that plotly.js takes."""

import html
import json

import numpy as np

from qdrl_haiku.programs.drawing.figure import Axis, Figure, Heatmap, Trace

_LEGEND = {
  "orientation": "h", "x": 0, "xanchor": "left", "y": 1, "yanchor": "top",
  "yref": "container"}
_AXIS = {
  "automargin": True, "gridcolor": "#e6e6e6", "linecolor": "#888888",
  "showline": True, "ticks": "outside", "zeroline": False}


def draw_with_plotly(figure: Figure) -> dict[str, object]:
  """Returns `data` and `layout`."""
  from plotly import subplots  # Here, since most runs are never reported.

  rows, columns = figure.shape
  is_single = rows * columns == 1
  used = np.arange(rows * columns).reshape(rows, columns) < len(figure.panels)
  drawn = subplots.make_subplots(
    rows, columns,
    specs=[[{} if is_used else None for is_used in row] for row in used],
    subplot_titles=[_text(panel.title) for panel in figure.panels],
    horizontal_spacing=0.22 / columns, vertical_spacing=0.38 / rows)
  drawn.update_layout(
    height=rows * figure.row_height + (0 if is_single else 60),
    width=figure.width,
    font={"family": "system-ui, sans-serif", "size": 13, "color": "#222222"},
    template="none", hovermode="closest", legend=_LEGEND,
    margin={"l": 70, "r": 20, "t": 60, "b": 60})
  drawn.update_annotations(font_size=13)
  named: set[str] = set()
  for i, panel in enumerate(figure.panels):
    where = {"row": i // columns + 1, "col": i % columns + 1}
    if panel.heatmap is not None:
      drawn.add_trace(_heatmap(panel.heatmap), **where)
      # Under a mouse, nothing may move to make room.
      margin = {"l": 70, "r": 115, "t": 36, "b": 60, "autoexpand": False}
      drawn.update_layout(plot_bgcolor="#dddddd", margin=margin)
    for trace in panel.traces:
      is_new = trace.in_legend and trace.name not in named
      named.update({trace.name} if is_new else ())
      drawn.add_trace(_trace(trace) | {"showlegend": is_new}, **where)
    size = 13 if is_single else 11
    drawn.update_xaxes(_axis(panel.x, size) | {"nticks": 7}, **where)
    drawn.update_yaxes(_axis(panel.y, size), **where)
    if panel.is_isometric:
      drawn.update_yaxes(scaleanchor=f"x{i + 1 if i else ''}", **where)
  return json.loads(drawn.to_json())


def _text(value: str) -> str:
  """Returns text without markup that plotly would take up."""
  return html.escape(value, quote=False).replace("\n", "<br>")


def _trace(trace: Trace) -> dict[str, object]:
  """Returns a line, its points, or an area."""
  sizes = trace.point_sizes()
  modes = ["lines"] * bool(trace.width) + ["markers"] * bool(sizes.any())
  found: dict[str, object] = {
    "type": "scatter",
    "mode": "+".join(modes) or "none",
    "x": trace.numbers("x"),
    "y": trace.numbers("y"),
    "name": _text(trace.name),
    "legendgroup": _text(trace.name),
    "line": {
      "color": trace.color, "width": trace.width, "dash": trace.dash},
    "marker": {
      "color": trace.color, "size": sizes.tolist(), "symbol": trace.symbol,
      "line": {"width": 3 * trace.symbol.endswith("-open")}},
    "cliponaxis": np.ndim(trace.sizes) == 0,
    "text": [_text(str(x)) for x in trace.texts] or None}
  if trace.is_area:
    found |= {"mode": "none", "fill": "toself", "fillcolor": trace.color}
  if trace.hover == "skip":
    return found | {"hoverinfo": "skip"}
  if trace.hover:
    found["hovertemplate"] = f"{_text(trace.hover)}<extra></extra>"
  return found


def _heatmap(cells: Heatmap) -> dict[str, object]:
  rows, columns = cells.values.shape
  dx = (cells.x[1] - cells.x[0]) / columns
  dy = (cells.y[1] - cells.y[0]) / rows
  return {
    "type": "heatmap", "z": cells.values,
    "x0": cells.x[0] + dx / 2, "dx": dx, "y0": cells.y[0] + dy / 2, "dy": dy,
    "colorscale": "Viridis", "hoverongaps": True,
    "colorbar": {"title": {"text": _text(cells.label), "side": "right"}},
    "hovertemplate": "(%{x:.3g}, %{y:.3g})<br>%{z:.4g}<extra></extra>"}


def _axis(axis: Axis, size: int) -> dict[str, object]:
  found: dict[str, object] = _AXIS | {
    "visible": not axis.is_hidden,
    "title": {"text": _text(axis.title), "font": {"size": size}, "standoff": 6},
    "tickfont": {"size": size - 1}, "range": axis.ends}
  if axis.is_log:
    # Without a format, plotly writes single digits between powers of ten.
    found |= {"type": "log", "tickformat": "~g"}
  if axis.names:
    names = [_text(name) for name in axis.names]
    found |= {"tickvals": list(range(len(names))), "ticktext": names}
  return found
