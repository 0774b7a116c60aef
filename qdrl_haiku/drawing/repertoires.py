"""A picture of a repertoire: the fitness in each cell."""

from collections.abc import Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from qdrl_haiku import map_elites

_PIXELS = 512


def heatmap(
  repertoire: map_elites.Repertoire,
  names: Sequence[str],
  corrected: map_elites.Repertoire | None = None,
) -> Figure:
  """Draws the fitness of each cell; empty cells stay grey.

  Args:
    repertoire: on the host.
    names: of the D axes of the descriptor.
    corrected: the same elites evaluated again, on the host, in cells as the
      repertoire has them; drawn beside it, in the same colours.

  Returns:
    The cells of one or two axes as they lie; of more, or where there are no
    cells, the elites at the first two, the fittest on top.
  """
  shown = {"": repertoire}
  if corrected is not None:
    shown = {"as found: ": repertoire, "evaluated again: ": corrected}
  figure = Figure(figsize=(1 + 5 * len(shown), 5), layout="constrained")
  fitness = np.concatenate(
    [np.asarray(x.fitness)[np.asarray(x.occupied)] for x in shown.values()]
  )
  colors: dict[str, Any] = {"cmap": matplotlib.colormaps["viridis"]}
  if fitness.size:
    colors |= {"vmin": fitness.min(), "vmax": fitness.max()}
  grid = figure.subplots(1, len(shown), squeeze=False)[0]
  for axes, (title, one) in zip(grid, shown.items(), strict=True):
    drawn = _draw(axes, one, names, colors)
    axes.set_title(f"{title}{_extent(one)}")
  figure.colorbar(drawn, ax=list(grid), label="episode return")
  return figure


def _extent(repertoire: map_elites.Repertoire) -> str:
  """Says how much of a repertoire is filled."""
  occupied, size = np.asarray(repertoire.occupied), repertoire.fitness.size
  if isinstance(repertoire.tessellation, map_elites.Unstructured):
    return f"{np.sum(occupied)} elites of {size}"
  return f"{100 * np.mean(occupied):.1f} % of {size} cells"


def _draw(
  axes: Axes,
  repertoire: map_elites.Repertoire,
  names: Sequence[str],
  colors: dict[str, Any],
) -> Any:
  """Draws one repertoire, and returns what a bar of colours explains."""
  tessellation = repertoire.tessellation
  fitness = np.where(repertoire.occupied, repertoire.fitness, np.nan)
  axes.set_facecolor("0.85")
  drawn: Any
  lower, upper = repertoire.bounds
  if len(names) > 2 or isinstance(tessellation, map_elites.Unstructured):
    order = np.argsort(fitness)  # NaN comes last, and isn't drawn.
    points = np.asarray(repertoire.descriptors)[order]
    x, y = points[:, 0], np.full(fitness.shape, 0.5)
    if len(names) > 1:
      y = points[:, 1]
    else:
      lower, upper = np.append(lower, 0), np.append(upper, 1)
    drawn = axes.scatter(x, y, c=fitness[order], s=12, **colors)
    axes.set(xlim=(lower[0], upper[0]), ylim=(lower[1], upper[1]))
  else:
    # The middles of so many pixels along each axis.
    share = (np.arange(_PIXELS) + 0.5) / _PIXELS
    points = np.stack(
      np.meshgrid(*[share] * len(names), indexing="ij"), axis=-1
    ).reshape(-1, len(names))
    cells = np.asarray(
      tessellation.cell(
        (lower + points * (upper - lower)).astype(np.float32)
      )
    )
    image = fitness[cells].reshape(_PIXELS, -1).T
    vertical = (lower[1], upper[1]) if len(names) == 2 else (0, 1)
    drawn = axes.imshow(
      image,
      origin="lower",
      extent=(lower[0], upper[0], *vertical),
      aspect="auto",
      interpolation="nearest",
      **colors,
    )
  axes.set_xlabel(names[0])
  if len(names) > 1:
    axes.set_ylabel(names[1])
  else:
    axes.set_yticks([])
  return drawn
