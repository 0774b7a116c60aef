"""A picture of a repertoire: the fitness in each cell."""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from matplotlib import figure as matplotlib_figure

from qdrl_haiku import map_elites
from qdrl_haiku.drawing import with_matplotlib
from qdrl_haiku.drawing.figure import RETURN, Axis, Figure, Heatmap, Panel

# Along each axis: of irregular cells, and where cells can't be drawn.
_PIXELS, _BINS = 400, 64


@dataclasses.dataclass(frozen=True)
class Elites:
  """Holds N elites in C cells, all that a picture of them needs."""

  cells: np.ndarray  # int32 [N], which cell each is in.
  fitness: np.ndarray  # float32 [N].
  descriptors: np.ndarray  # float32 [N, D].
  names: Sequence[str]  # Of the D axes.
  lower: np.ndarray  # [D], the bounds of descriptors.
  upper: np.ndarray
  num_cells: int  # C; where there are no cells, of places.
  centroids: np.ndarray | None  # float32 [C, D]; None where there are no cells.
  shape: tuple[int, ...] | None  # [D], cells along each axis of a grid.


class Places(NamedTuple):
  """Places cells in the plane of the descriptor's first two axes.

  `cells`, int32 [rows, columns], has the lowest row first, and -1 where no
  elite is, if cells overlap; x and y are the edges.
  """

  cells: np.ndarray
  x: tuple[float, float]
  y: tuple[float, float]


def heatmap(
  repertoire: map_elites.Repertoire,
  names: Sequence[str],
  corrected: map_elites.Repertoire | None = None,
) -> matplotlib_figure.Figure:
  """Draws the fitness of each cell; empty cells stay grey.

  Args:
    repertoire: on the host.
    names: of the D axes of the descriptor.
    corrected: the same elites evaluated again, on the host, in cells as the
      repertoire has them; drawn beside it, in the same colours.

  Returns:
    The cells of one or two axes as they lie; of more, or where there are no
    cells, the fittest elite at each place of the first two.
  """
  shown = {"": repertoire}
  if corrected is not None:
    shown = {"as found: ": repertoire, "evaluated again: ": corrected}
  panels = []
  for title, one in shown.items():
    elites = _elites(one, names)
    num, num_cells = len(elites.cells), elites.num_cells
    text = f"{100 * num / num_cells:.1f} % of {num_cells} cells"
    if elites.centroids is None:
      text = f"{num} elites of {num_cells}"
    panels.append(heatmap_panel(elites, heatmap_places(elites), title + text))
  return with_matplotlib.draw_with_matplotlib(
    Figure(panels, row_height=450, width=90 + 450 * len(panels))
  )


def heatmap_panel(elites: Elites, where: Places, title: str = "") -> Panel:
  """Describes the picture of elites at the places of their cells."""
  fitness = np.full(elites.num_cells + 1, np.nan, np.float32)
  fitness[elites.cells] = elites.fitness
  x, y = (*elites.names, "")[:2]
  return Panel(
    title,
    [],
    Axis(x, range=where.x),
    Axis(y, range=where.y, is_hidden=not y),
    # No elite is the last one.
    Heatmap(fitness[where.cells], where.x, where.y, RETURN),
  )


def heatmap_places(elites: Elites) -> Places:
  """Lays out the cells."""
  edges = np.stack([elites.lower, elites.upper], axis=1).tolist()
  x, y = map(tuple, (*edges, [0.0, 1.0])[:2])
  size = len(elites.lower)
  if size > 2 or elites.centroids is None:
    return Places(_fittest(elites), x, y)
  if elites.shape is not None:
    cells = np.arange(elites.num_cells, dtype=np.int32)
    return Places(cells.reshape(elites.shape[0], -1).T, x, y)
  return Places(_nearest(elites), x, y)


def _nearest(elites: Elites) -> np.ndarray:
  """Returns the cell at each pixel of one or two axes."""
  from scipy import spatial  # Here, since importing it takes long.

  size = len(elites.lower)
  middles = (np.arange(_PIXELS) + 0.5) / _PIXELS
  points = np.stack(np.meshgrid(*[middles] * size), axis=-1)
  width = elites.upper - elites.lower
  tree = spatial.cKDTree((elites.centroids - elites.lower) / width)
  cells = tree.query(points.reshape(-1, size))[1]
  return cells.astype(np.int32).reshape(-1, _PIXELS)


def _fittest(elites: Elites) -> np.ndarray:
  """Returns the cell of the fittest elite at each place of two axes."""
  size = elites.shape
  if size is not None:
    axes = np.unravel_index(elites.cells, size)
  else:
    size = (_BINS,) * len(elites.lower)
    width = elites.upper - elites.lower
    bins = ((elites.descriptors - elites.lower) / width * _BINS).astype(int)
    axes = tuple(np.clip(bins, 0, _BINS - 1).T)
  columns, rows = (*size, 1)[:2]
  image = np.full((rows, columns), -1, np.int32)
  order = np.argsort(elites.fitness)  # The fittest is written last.
  column, row = (*axes, np.zeros_like(elites.cells))[:2]
  image[row[order], column[order]] = elites.cells[order]
  return image


def _elites(repertoire: map_elites.Repertoire, names: Sequence[str]) -> Elites:
  """Returns the elites of a repertoire."""
  cells = np.flatnonzero(np.asarray(repertoire.occupied))
  fitness = np.asarray(repertoire.fitness)
  tessellation = repertoire.tessellation
  centroids = getattr(tessellation, "centroids", None)
  return Elites(
    cells.astype(np.int32),
    fitness[cells],
    np.asarray(repertoire.descriptors)[cells],
    names,
    *repertoire.bounds,
    len(fitness),
    None if centroids is None else np.asarray(centroids),
    getattr(tessellation, "shape", None),
  )
