"""A run's pictures: some of the figures of its report, drawn by matplotlib."""

import html
import math
import pathlib
from typing import Any, Literal

from matplotlib import figure as matplotlib_figure
from matplotlib.axes import Axes

from qdrl_haiku.reports import curves, schedules, skills
from qdrl_haiku.reports.figure import Figure, Trace
from qdrl_haiku.reports.runs import read_runs

_INCHES_PER_PIXEL = 1 / 90
_POINTS_PER_PIXEL = 0.75
# Inches along the horizontal axis of one plot, and of one of several.
_WIDTH, _WIDTH_OF_PANEL = 8.0, 4.0
_STYLES = {"vh": "steps-pre"}


def plot_run(path: pathlib.Path) -> list[pathlib.Path]:
  """Draws what a run left behind, into `plots/`."""
  (run,) = read_runs([str(path)])
  figures = {
    "learning_curves.png": curves.learning_curves(run),
    "diagnostics.png": curves.metric_panels(run, "training/"),
    "hyperparameters.png": schedules.hyperparameters(run),
    "repertoire.png": curves.metric_panels(run, "qd/"),
    "skills.png": curves.metric_panels(run, "diayn/"),
    "trajectories.png": skills.trajectories(skills.read_episodes(run.path)),
  }
  found = {name: figure for name, figure in figures.items() if figure}
  if found:
    (path / "plots").mkdir(exist_ok=True)
  for name, figure in found.items():
    draw(figure).savefig(path / "plots" / name, dpi=120)
  return [path / "plots" / name for name in found]


def draw(figure: Figure) -> matplotlib_figure.Figure:
  """Draws a figure of lines as matplotlib's."""
  layout = figure["layout"]
  numbers = [
    name.removeprefix("xaxis") for name in layout if name.startswith("xaxis")
  ]
  columns = min(len(numbers), layout.get("grid", {}).get("columns", 1))
  rows = -(-len(numbers) // columns)
  width = _WIDTH if len(numbers) == 1 else columns * _WIDTH_OF_PANEL
  picture = matplotlib_figure.Figure(
    figsize=(
      layout["width"] * _INCHES_PER_PIXEL if "width" in layout else width,
      layout["height"] * _INCHES_PER_PIXEL,
    ),
    layout="constrained",
  )
  grid = list(picture.subplots(rows, columns, squeeze=False).flat)
  axes = dict(zip(numbers, grid, strict=False))
  for unused in grid[len(numbers) :]:
    unused.axis("off")
  for number, one in axes.items():
    _set_axis(one, "x", layout[f"xaxis{number}"])
    _set_axis(one, "y", layout[f"yaxis{number}"])
  for note in layout.get("annotations", ()):
    number = note["xref"].removeprefix("x").removesuffix(" domain")
    title = _plain(note["text"])
    axes[number].set_title(title, fontsize="medium", loc="left")
  for trace in figure["data"]:
    _draw_trace(axes[trace.get("xaxis", "x").removeprefix("x")], trace)
  _draw_legend(picture, list(axes.values()))
  return picture


def _draw_trace(axes: Axes, trace: Trace) -> None:
  """Draws a line, its markers, or an area."""
  x, y = (
    [math.nan if value is None else value for value in trace[name]]
    for name in "xy"
  )
  color = trace["line"]["color"]
  # Names that begin so are left out of the legend.
  name = _plain(trace["name"]) if trace.get("showlegend", True) else "_"
  if trace.get("fill") == "toself":
    axes.fill(x, y, color=trace["fillcolor"], linewidth=0, label="_")
    return
  axes.plot(
    x,
    y,
    color=color,
    linewidth=_POINTS_PER_PIXEL * trace["line"]["width"],
    drawstyle=_STYLES.get(trace["line"].get("shape"), "default"),
    label=name,
  )
  if "markers" in trace["mode"]:
    size = trace["marker"]["size"]
    sizes = size if isinstance(size, list) else [size] * len(x)
    areas = [(_POINTS_PER_PIXEL * pixels) ** 2 for pixels in sizes]
    axes.scatter(x, y, areas, color=color, linewidth=0)


def _set_axis(
  axes: Axes, letter: Literal["x", "y"], axis: dict[str, Any]
) -> None:
  """Sets an axis's title, its range and its ticks."""
  size = "medium" if axis["title"]["font"]["size"] > 11 else "small"
  axes.set(**{f"{letter}label": _plain(axis["title"]["text"])})
  of_letter = getattr(axes, f"{letter}axis")
  of_letter.label.set_size(size)
  if axis.get("type") == "log":
    axes.set(**{f"{letter}scale": "log"})
  elif "tickvals" in axis:
    of_letter.set_ticks(axis["tickvals"], map(_plain, axis["ticktext"]))
  elif "nticks" in axis:
    axes.locator_params(axis=letter, nbins=axis["nticks"])
  if "range" in axis:
    axes.set(**{f"{letter}lim": axis["range"]})
  axes.grid(color=axis["gridcolor"])
  axes.set_axisbelow(True)


def _draw_legend(picture: matplotlib_figure.Figure, axes: list[Axes]) -> None:
  """Draws one legend of all names, if there are several."""
  named = {
    name: handle
    for one in axes
    for handle, name in zip(*one.get_legend_handles_labels(), strict=True)
  }
  if len(named) > 1:
    picture.legend(
      list(named.values()), list(named), loc="outside upper left", ncols=4,
      frameon=False, fontsize="small",
    )  # fmt: skip


def _plain(text: str) -> str:
  """Returns text as users see it in a report, and nothing as mathematics."""
  return html.unescape(text).replace("$", r"\$")
