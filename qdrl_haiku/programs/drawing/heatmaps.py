"""A picture of a repertoire: the fitness in each cell."""

from collections.abc import Sequence

import jax
import numpy as np
from matplotlib import figure as matplotlib_figure

from qdrl_haiku.map_elites import OBJECTIVES, Repertoire, Unstructured
from qdrl_haiku.programs.drawing import figure, with_matplotlib

# Per axis: pixels of irregular cells; bins where cells can't be drawn.
_PIXELS, _BINS = 400, 64


def heatmap(
  repertoire: Repertoire, names: Sequence[str],
  corrected: Repertoire | None = None, objectives: Sequence[str] = (),
) -> matplotlib_figure.Figure:
  """Draws the fitness of each cell, and fronts; empty cells stay grey.

  Args:
    repertoire: on the host.
    names: of the D axes of the descriptor.
    corrected: the same elites evaluated again, on the host, in cells as the
      repertoire has them; drawn beside it, in the same colours.
    objectives: names of the M objectives of its elites, if any.

  Returns:
    The cells of one or two axes as they lie; of more, or where there are no
    cells, the fittest elite at each place of the first two.
  """
  shown = {"": repertoire}
  if corrected is not None:
    shown = {"as found: ": repertoire, "evaluated again: ": corrected}
  panels = []
  for title, one in shown.items():
    one, _ = heatmap_cells(one)
    num, num_cells = int(np.sum(one.occupied)), one.fitness.size
    text = f"{100 * num / num_cells:.1f} % of {num_cells} cells"
    if not one.has_cells:
      text = f"{num} elites of {num_cells}"
    cells = heatmap_places(one)
    panels.append(heatmap_panel(one, names, cells, title + text))
  if objectives:
    found = repertoire.extras[OBJECTIVES][np.asarray(repertoire.occupied)]
    panels.append(front_panel(np.asarray(found), objectives))
  return with_matplotlib.draw_with_matplotlib(
    figure.Figure(panels, row_height=450, width=90 + 450 * len(panels)))


def heatmap_cells(repertoire: Repertoire) -> tuple[Repertoire, np.ndarray]:
  """Returns the repertoire to draw, and each cell's elite, -1 for none.

  Of fronts, the fittest elite of each cell.
  """
  cells = repertoire.tessellation
  is_drawn = isinstance(cells, Unstructured) and cells.grid is not None
  if not is_drawn or OBJECTIVES not in repertoire.extras:
    return repertoire, np.arange(repertoire.fitness.size)
  fittest = jax.device_get(repertoire.in_cells())
  return fittest, np.where(fittest.occupied, fittest.genotypes, -1)


def front_panel(objectives: np.ndarray, names: Sequence[str]) -> figure.Panel:
  """Describes the first two objectives of elites [N, M] and their front."""
  x, y = objectives[:, :2].T
  order = np.lexsort((-y, -x))
  highest = np.maximum.accumulate(np.append(-np.inf, y[order]))
  front = order[y[order] > highest[:-1]]
  traces = [
    figure.Trace(x, y, "elites", figure.PALE, 0, sizes=5),
    figure.Trace(x[front], y[front], "front of all", sizes=6)]
  return figure.Panel(
    f"{len(front)} of {len(x)} elites are in the front of all",
    traces, figure.Axis(names[0]), figure.Axis(names[1]))


def heatmap_panel(
  repertoire: Repertoire, names: Sequence[str], cells: np.ndarray,
  title: str = "",
) -> figure.Panel:
  """Describes the picture of a `repertoire`, with a `title`.

  `cells` are those of `heatmap_places`, int32 [rows, columns], and the first of
  `names` those of the axes.
  """
  fitness = np.where(repertoire.occupied, repertoire.fitness, np.nan)
  fitness = np.append(fitness, np.float32(np.nan))  # No elite is the last one.
  edges = np.stack(repertoire.bounds, axis=1).tolist()
  x, y = map(tuple, (*edges, [0.0, 1.0])[:2])
  x_name, y_name = (*names, "")[:2]
  drawn = figure.Heatmap(fitness[cells], x, y, figure.RETURN)
  return figure.Panel(
    title, [], figure.Axis(x_name, range=x),
    figure.Axis(y_name, range=y, is_hidden=not y_name), drawn)


def heatmap_places(repertoire: Repertoire) -> np.ndarray:
  """Places cells in the plane of the descriptor's first two axes.

  Returns:
    int32 [rows, columns], the lowest row first: the cell at each place; -1 if,
    of several cells at a place, none has an elite.
  """
  shape = getattr(repertoire.tessellation, "shape", None)
  if repertoire.descriptors.shape[1] > 2 or not repertoire.has_cells:
    return _fittest(repertoire, shape)
  if shape is None:
    return _nearest(repertoire)
  numbers = np.arange(repertoire.fitness.size, dtype=np.int32)
  return numbers.reshape(shape[0], -1).T


def _nearest(repertoire: Repertoire) -> np.ndarray:
  """Returns the cell at each pixel of one or two axes."""
  from scipy import spatial  # Here, since importing it takes long.

  lower, upper = repertoire.bounds
  middles = (np.arange(_PIXELS) + 0.5) / _PIXELS
  points = np.stack(np.meshgrid(*[middles] * len(lower)), axis=-1)
  centroids = np.asarray(repertoire.centroids)
  tree = spatial.cKDTree((centroids - lower) / (upper - lower))
  cells = tree.query(points.reshape(-1, len(lower)))[1]
  return cells.astype(np.int32).reshape(-1, _PIXELS)


def _fittest(
  repertoire: Repertoire, shape: tuple[int, ...] | None
) -> np.ndarray:
  """Returns the cell of the fittest elite at each place of two axes."""
  cells = np.flatnonzero(repertoire.occupied)
  if shape is not None:
    axes = np.unravel_index(cells, shape)
  else:
    lower, upper = repertoire.bounds
    shape = (_BINS,) * len(lower)
    shares = (repertoire.descriptors[cells] - lower) / (upper - lower)
    bins = (shares * _BINS).astype(int)
    axes = tuple(np.clip(bins, 0, _BINS - 1).T)
  columns, rows = (*shape, 1)[:2]
  image = np.full((rows, columns), -1, np.int32)
  # The fittest is written last.
  order = np.argsort(repertoire.fitness[cells])
  column, row = (*axes, np.zeros_like(cells))[:2]
  image[row[order], column[order]] = cells[order]
  return image
