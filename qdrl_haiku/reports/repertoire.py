"""The elites of a run's repertoire, and the picture in which one finds them.

They are read with NumPy alone, whatever agents they are.
"""

import base64
import pathlib
import zipfile
from typing import Any, NamedTuple

import numpy as np

from qdrl_haiku.map_elites import storage
from qdrl_haiku.reports import figure

# Of the picture of irregular cells, along each axis.
_PIXELS = 400
# Of the picture of more than two axes, likewise.
_BINS = 64
_HEIGHT = 560
_HYPERPARAMS = "genotypes/hyperparams/"
FIRST = "the first agents"
"""Label of elites that no emitter made."""


class Again(NamedTuple):
  """Holds M episodes of N elites that were evaluated again.

  Attributes:
    num_episodes: M.
    fitness: float32 [N], the mean.
    fitness_spread: float32 [N], the standard deviation; NaN of one episode.
    descriptors: float32 [N, D], the mean.
    descriptor_spread: float32 [N, D], the standard deviation, likewise.
  """

  num_episodes: int
  fitness: np.ndarray
  fitness_spread: np.ndarray
  descriptors: np.ndarray
  descriptor_spread: np.ndarray


class Elites(NamedTuple):
  """Holds a repertoire of N elites in C cells.

  Attributes:
    path: of its file.
    step: when it was written, environment steps per agent.
    cells: int32 [N], which cell each is in.
    fitness: float32 [N].
    descriptors: float32 [N, D].
    hyperparams: float32 [N] by name.
    names: of the D axes.
    lower: [D], the least descriptor.
    upper: [D], the greatest descriptor.
    shape: [D], cells along each axis of a grid; None of other cells.
    centroids: float32 [C, D]; nothing where there are no cells.
    num_cells: C; where there are no cells, of places.
    has_cells: whether a descriptor belongs to a cell.
    emitters: names of those that filled the repertoire, if there were several.
    found_by: int32 [N], which of them found each; -1 of the first agents.
    again: what they did when they were evaluated again, if they were.
  """

  path: pathlib.Path
  step: int
  cells: np.ndarray
  fitness: np.ndarray
  descriptors: np.ndarray
  hyperparams: dict[str, np.ndarray]
  names: tuple[str, ...]
  lower: np.ndarray
  upper: np.ndarray
  shape: tuple[int, ...] | None
  centroids: np.ndarray
  num_cells: int
  has_cells: bool = True
  emitters: tuple[str, ...] = ()
  found_by: np.ndarray = np.zeros(0, np.int32)
  again: Again | None = None

  @property
  def finds(self) -> dict[str, int]:
    """Number of elites by emitter; empty where there was one."""
    if not self.emitters:
      return {}
    names = (*self.emitters, FIRST)
    return {
      name: int(np.sum(self.found_by % len(names) == i))
      for i, name in enumerate(names)
    }


class Picture(NamedTuple):
  """Places cells in the plane of the descriptor's first two axes.

  Attributes:
    cells: int32 [rows, columns], from the lower left; -1 where no elite is, if
      cells overlap.
    x: the left and the right edge.
    y: the lower and the upper edge.
  """

  cells: np.ndarray
  x: tuple[float, float]
  y: tuple[float, float]


def read(run_path: pathlib.Path) -> tuple[Elites | None, list[str]]:
  """Reads the latest repertoire of a run that can be read."""
  problems: list[str] = []
  files = {
    int(path.stem): path
    for path in (run_path / "repertoire").glob("*.npz")
    if path.stem.isdecimal()
  }
  for step in sorted(files, reverse=True):
    try:
      elites = _read(files[step], step)
    except (OSError, ValueError) as error:
      problems.append(str(error))
      continue
    path = run_path / "reevaluation" / f"{step}.npz"
    try:
      return elites._replace(again=_read_again(path, elites)), problems
    except FileNotFoundError:
      pass
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
      problems.append(f"{path} can't be read: {error}")
    return elites, problems
  return None, problems


def picture(elites: Elites) -> Picture:
  """Lays out the cells."""
  lower, upper = elites.lower, elites.upper
  x = (float(lower[0]), float(upper[0]))
  if len(lower) == 1 and elites.has_cells:
    cells = _along(elites, np.linspace(0, 1, 2 * _PIXELS + 1)[1::2, None])
    return Picture(cells[None], x, (0.0, 1.0))
  if len(lower) == 1:
    return Picture(_fittest(elites), x, (0.0, 1.0))
  y = (float(lower[1]), float(upper[1]))
  if len(lower) > 2 or not elites.has_cells:
    return Picture(_fittest(elites), x, y)
  if elites.shape is not None:
    cells = np.arange(len(elites.centroids)).reshape(elites.shape).T
    return Picture(cells.astype(np.int32), x, y)
  middles = np.linspace(0, 1, 2 * _PIXELS + 1)[1::2]
  unit = np.stack(np.meshgrid(middles, middles), axis=-1).reshape(-1, 2)
  cells = _along(elites, unit).reshape(_PIXELS, _PIXELS)
  return Picture(cells, x, y)


def to_json(elites: Elites) -> dict[str, Any]:
  """Returns what the page needs to draw the picture and to answer clicks."""
  image = picture(elites)
  return {
    "step": elites.step,
    "num_cells": elites.num_cells,
    "image": {
      "rows": image.cells.shape[0],
      "columns": image.cells.shape[1],
      "cells": encoded(image.cells, "<i4"),
      "x": image.x,
      "y": image.y,
    },
    "cells": encoded(elites.cells, "<i4"),
    "fitness": encoded(elites.fitness, "<f4"),
    "descriptors": [
      {"name": name, "values": encoded(elites.descriptors[:, i], "<f4")}
      for i, name in enumerate(elites.names)
    ],
    "hyperparams": [
      {"name": name, "values": encoded(values, "<f4")}
      for name, values in elites.hyperparams.items()
    ],
    "finders": {
      "names": [*elites.emitters, FIRST],
      "found_by": encoded(elites.found_by, "<i4"),
    }
    if elites.emitters
    else None,
    "again": _again_to_json(elites.again),
    "layout": _layout(elites, image),
  }


def encoded(values: Any, dtype: str) -> dict[str, str]:
  """Returns an array as text, which takes a third of the room of its digits."""
  data = np.ascontiguousarray(values, dtype).tobytes()
  return {"dtype": dtype, "bytes": base64.b64encode(data).decode()}


def _read(path: pathlib.Path, step: int) -> Elites:
  with storage.opened(path) as (arrays, record):
    cells, descriptors = arrays["cells"], arrays["descriptors"]
    tessellation = record["tessellation"]
    has_cells = tessellation["kind"] != "none"
    bounded = tessellation if has_cells else tessellation["grid"] or {}
    if not bounded:
      lower, upper = storage.extent(descriptors[cells].astype(np.float64))
      bounded = {"lower": lower, "upper": upper}
    hyperparams = {
      name.removeprefix(_HYPERPARAMS): arrays[name]
      for name in arrays
      if name.startswith(_HYPERPARAMS)
    }
    if not all(x.shape == cells.shape for x in hyperparams.values()):
      raise ValueError("its hyperparameters are no numbers, one per elite")
    shape, size = tessellation.get("shape"), descriptors.shape[1]
    num_cells = tessellation.get("num_cells")
    centroids = np.zeros((0, size), np.float32)
    if has_cells:
      centroids = arrays["centroids"]
      num_cells = len(centroids)
    if len(descriptors) != num_cells or (shape and np.prod(shape) != num_cells):
      raise ValueError("it has descriptors of other cells")
    config = record["config"] or {}
    names = config.get("descriptor_names") or [
      f"descriptor {i + 1}" for i in range(size)
    ]
    found_by = np.array(config.get("found_by", []), np.int32)
    if config.get("emitters") and found_by.shape != cells.shape:
      raise ValueError("it doesn't say of each elite who found it")
    return Elites(
      path=path,
      step=step,
      cells=cells,
      fitness=arrays["fitness"][cells],
      descriptors=descriptors[cells],
      hyperparams=hyperparams,
      names=tuple(names),
      lower=np.array(bounded["lower"], np.float64),
      upper=np.array(bounded["upper"], np.float64),
      shape=tuple(shape) if shape else None,
      centroids=centroids,
      num_cells=num_cells,
      has_cells=has_cells,
      emitters=tuple(config.get("emitters", ())),
      found_by=found_by,
    )


def _read_again(path: pathlib.Path, elites: Elites) -> Again:
  """Reads what `runs.repertoires` wrote of a second look at these elites."""
  with np.load(path) as file:
    cells, fitness, descriptors = (
      file[name] for name in ("cells", "fitness", "descriptors")
    )
  if not np.array_equal(cells, elites.cells) or (
    descriptors.shape != (*fitness.shape, len(elites.names))
  ):
    raise ValueError("it is of other elites")
  ddof = min(1, fitness.shape[1] - 1)
  spreads = [x.std(axis=1, ddof=ddof) for x in (fitness, descriptors)]
  if not ddof:
    spreads = [np.full_like(x, np.nan) for x in spreads]
  return Again(
    num_episodes=fitness.shape[1],
    fitness=fitness.mean(axis=1),
    fitness_spread=spreads[0],
    descriptors=descriptors.mean(axis=1),
    descriptor_spread=spreads[1],
  )


def _again_to_json(again: Again | None) -> dict[str, Any] | None:
  """Returns means and standard deviations, of the descriptor by axis."""
  if again is None:
    return None
  pairs = [
    (again.fitness, again.fitness_spread),
    *zip(again.descriptors.T, again.descriptor_spread.T, strict=True),
  ]
  fitness, *descriptors = [
    {"mean": encoded(mean, "<f4"), "spread": encoded(spread, "<f4")}
    for mean, spread in pairs
  ]
  return {
    "num_episodes": again.num_episodes,
    "fitness": fitness,
    "descriptors": descriptors,
  }


def _layout(elites: Elites, image: Picture) -> dict[str, Any]:
  """Lays the picture out; empty cells are grey."""
  x_title, y_title = (*map(figure.text, elites.names), "")[:2]
  layout = figure.plot([], x_title, y_title, _HEIGHT)["layout"]
  layout["plot_bgcolor"] = "#dddddd"
  # Under a mouse, nothing may move to make room.
  layout["margin"] = {"l": 70, "r": 115, "t": 36, "b": 60, "autoexpand": False}
  for name, title, edges in (
    ("xaxis", x_title, image.x), ("yaxis", y_title, image.y)
  ):  # fmt: skip
    layout[name] |= {
      "automargin": False,
      "range": edges,
      "showgrid": False,
      "visible": bool(title),
    }
  return layout


def _along(elites: Elites, unit: np.ndarray) -> np.ndarray:
  """Returns the cells [M] of points [M, D], with bounds scaled to a cube."""
  from scipy import spatial  # Here, since importing it takes long.

  width = elites.upper - elites.lower
  # Of a grid too, the nearest centroid is that of the cell.
  tree = spatial.cKDTree((elites.centroids - elites.lower) / width)
  return tree.query(unit)[1].astype(np.int32)


def _fittest(elites: Elites) -> np.ndarray:
  """Returns the cell of the fittest elite at each place of two axes."""
  if elites.shape is not None:
    size = np.array(elites.shape[:2])
    place = np.stack(np.unravel_index(elites.cells, elites.shape)[:2], axis=1)
  else:
    size, num = np.array((_BINS, _BINS)), min(2, len(elites.lower))
    lower, upper = elites.lower[:num], elites.upper[:num]
    share = (elites.descriptors[:, :num] - lower) / (upper - lower)
    size[num:] = 1
    place = np.zeros((len(share), 2), int)
    place[:, :num] = np.clip(
      (share * size[:num]).astype(int), 0, size[:num] - 1
    )
  image = np.full(size[::-1], -1, np.int32)
  order = np.argsort(elites.fitness)  # The fittest is written last.
  image[place[order, 1], place[order, 0]] = elites.cells[order]
  return image
