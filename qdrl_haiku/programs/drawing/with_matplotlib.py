"""Draws a described figure with matplotlib."""

import pathlib
from collections.abc import Iterable
from typing import Literal

import matplotlib
import numpy as np
from matplotlib import figure as matplotlib_figure
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize

from qdrl_haiku import files
from qdrl_haiku.programs.drawing.figure import Axis, Figure, Panel, Trace

_INCHES_PER_PIXEL = 1 / 90
_POINTS_PER_PIXEL = 0.75
# Inches of one panel, and of one of several.
_WIDTH, _WIDTH_OF_PANEL = 8.0, 4.0
_DASHES = {"solid": "-", "dash": "--", "dot": ":", "dashdot": "-."}
_SYMBOLS = {
  "circle": "o", "circle-open": "o", "square": "s", "diamond": "D", "x": "X",
  "cross": "P", "star": "*", "triangle-up": "^", "triangle-down": "v"}
_EMPTY = "0.85"


def draw_with_matplotlib(figure: Figure) -> matplotlib_figure.Figure:
  """Draws a figure, whose first axes are the panels in their order."""
  rows, columns = figure.shape
  width = _WIDTH if rows * columns == 1 else columns * _WIDTH_OF_PANEL
  if figure.width is not None:
    width = figure.width * _INCHES_PER_PIXEL
  picture = matplotlib_figure.Figure(
    figsize=(width, rows * figure.row_height * _INCHES_PER_PIXEL),
    layout="constrained")
  grid = list(picture.subplots(rows, columns, squeeze=False).flat)
  used = grid[: len(figure.panels)]
  colors = _colors(figure.panels)
  for axes, panel in zip(used, figure.panels, strict=True):
    draw_panel_with_matplotlib(axes, panel, colors)
  for axes in grid[len(used) :]:
    axes.remove()
  labels = {x.heatmap.label for x in figure.panels if x.heatmap is not None}
  for label in labels:
    picture.colorbar(colors, ax=used, label=label)
  named = {
    name: handle
    for axes in used
    for handle, name in zip(*axes.get_legend_handles_labels(), strict=True)}
  if len(named) > 1:
    picture.legend(
      list(named.values()), list(named), loc="outside upper left", ncols=4,
      frameon=False, fontsize="small")
  return picture


def save_with_matplotlib(
  picture: matplotlib_figure.Figure, path: pathlib.Path
) -> pathlib.Path:
  """Writes a picture, whole or not at all; returns the `path` of the file."""
  path.parent.mkdir(exist_ok=True)
  with files.file_written_whole(path) as temporary:
    picture.savefig(temporary, dpi=120)
  return path


def draw_panel_with_matplotlib(
  axes: Axes, panel: Panel, colors: ScalarMappable | None = None
) -> None:
  """Draws one `panel` on empty `axes`; `colors` are those of its heat map."""
  if panel.heatmap is not None:
    cells = panel.heatmap
    axes.set_facecolor(_EMPTY)
    lowest, highest = (colors or _colors([panel])).get_clim()
    axes.imshow(
      cells.values, cmap="viridis", vmin=lowest, vmax=highest, origin="lower",
      extent=(*cells.x, *cells.y), aspect="auto", interpolation="nearest")
  for trace in panel.traces:
    _draw_trace(axes, trace)
  _set_axis(axes, "x", panel.x)
  _set_axis(axes, "y", panel.y)
  if panel.is_isometric:
    axes.set_aspect("equal", adjustable="datalim")
  if panel.heatmap is None:
    axes.grid(color="#e6e6e6")
    axes.set_axisbelow(True)
  axes.set_title(_plain(panel.title), fontsize="medium")


def _colors(panels: Iterable[Panel]) -> ScalarMappable:
  """Returns the colours of the heat maps of all panels."""
  maps = [x.heatmap.values for x in panels if x.heatmap is not None]
  known = np.concatenate([x[np.isfinite(x)] for x in maps] or [np.zeros(0)])
  ends = (known.min(), known.max()) if known.size else (0.0, 1.0)
  return ScalarMappable(Normalize(*ends), matplotlib.colormaps["viridis"])


def _draw_trace(axes: Axes, trace: Trace) -> None:
  """Draws a line, its points, or an area."""
  # Names that begin so are left out of the legend.
  name = _plain(trace.name) if trace.in_legend else "_"
  x, y = trace.numbers("x"), trace.numbers("y")
  if trace.is_area:
    axes.fill(x, y, color=trace.color, linewidth=0, label="_")
    return
  sizes = np.broadcast_to(trace.point_sizes(), len(x))
  shown = np.flatnonzero(sizes)
  is_open = trace.symbol.endswith("-open")
  axes.plot(
    x, y, color=trace.color, linewidth=_POINTS_PER_PIXEL * trace.width,
    linestyle=_DASHES[trace.dash] if trace.width else "none",
    marker=_SYMBOLS[trace.symbol] if len(shown) else None,
    markersize=_POINTS_PER_PIXEL * sizes.max(initial=0),
    markerfacecolor="none" if is_open else trace.color,
    markevery=None if len(shown) == len(x) else shown.tolist(), label=name)


def _set_axis(axes: Axes, letter: Literal["x", "y"], axis: Axis) -> None:
  """Sets an axis's title, its range and its ticks."""
  drawn = axes.xaxis if letter == "x" else axes.yaxis
  axes.set(**{f"{letter}label": _plain(axis.title)})
  if axis.is_log:
    axes.set(**{f"{letter}scale": "log"})
  if axis.names:
    drawn.set_ticks(range(len(axis.names)), [_plain(x) for x in axis.names])
  if axis.ends is not None:
    axes.set(**{f"{letter}lim": axis.ends})
  drawn.set_visible(not axis.is_hidden)


def _plain(text: str) -> str:
  """Returns text in which nothing is mathematics."""
  return text.replace("$", r"\$")
