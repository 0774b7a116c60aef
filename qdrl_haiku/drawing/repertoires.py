"""A picture of a repertoire: the fitness in each cell."""

from collections.abc import Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from qdrl_haiku import map_elites

_PIXELS = 512


def heatmap(
  repertoire: map_elites.Repertoire, names: Sequence[str]
) -> Figure:
  """Draws the fitness of each cell; empty cells stay grey.

  Args:
    repertoire: on the host.
    names: of the D axes of the descriptor.

  Returns:
    The cells of one or two axes as they lie; of more, or where there are no
    cells, the elites at the first two, the fittest on top.
  """
  tessellation = repertoire.tessellation
  fitness = np.where(repertoire.occupied, repertoire.fitness, np.nan)
  figure = Figure(figsize=(6, 5), layout="constrained")
  axes = figure.subplots()
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
    drawn = axes.scatter(x, y, c=fitness[order], s=12, cmap="viridis")
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
      cmap=matplotlib.colormaps["viridis"],
    )
  axes.set_xlabel(names[0])
  if len(names) > 1:
    axes.set_ylabel(names[1])
  else:
    axes.set_yticks([])
  figure.colorbar(drawn, label="episode return")
  coverage = 100 * np.mean(np.asarray(repertoire.occupied))
  title = f"{coverage:.1f} % of {fitness.size} cells"
  if isinstance(tessellation, map_elites.Unstructured):
    title = f"{np.sum(repertoire.occupied)} elites of {fitness.size}"
  axes.set_title(title)
  return figure
