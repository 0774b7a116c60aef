"""The elites of a run's repertoire, and what a page shows of them.

They are read with NumPy alone, whatever agents they are.
"""

import dataclasses
import pathlib
import zipfile
from typing import NamedTuple

import numpy as np

from qdrl_haiku.drawing import heatmaps
from qdrl_haiku.drawing.figure import ORANGE, Figure, Trace
from qdrl_haiku.map_elites import storage
from qdrl_haiku.reports import with_plotly

_HEIGHT = 560
_HYPERPARAMS = "genotypes/hyperparams/"
FIRST = "the first agents"
"""Label of elites that no emitter made."""


class Again(NamedTuple):
  """Holds M episodes of N elites that were evaluated again.

  Attributes:
    num_episodes: M.
    mean: float32 [N, 1 + D], of the fitness and the descriptor.
    spread: float32 [N, 1 + D], the standard deviations; NaN of one episode.
  """

  num_episodes: int
  mean: np.ndarray
  spread: np.ndarray


@dataclasses.dataclass(frozen=True)
class Elites(heatmaps.Elites):
  """Holds a run's repertoire of N elites in C cells.

  Attributes:
    path: of its file.
    step: when it was written, environment steps per agent.
    hyperparams: float32 [N] by name.
    emitters: names of those that filled the repertoire, if there were several.
    found_by: int32 [N], which of them found each; -1 of the first agents.
    again: their second evaluation, if there was one.
  """

  path: pathlib.Path
  step: int
  hyperparams: dict[str, np.ndarray]
  emitters: tuple[str, ...] = ()
  found_by: np.ndarray = dataclasses.field(
    default_factory=lambda: np.zeros(0, np.int32)
  )
  again: Again | None = None

  @property
  def finders(self) -> tuple[str, ...]:
    """Labels of what made elites; empty where there was one emitter."""
    return (*self.emitters, FIRST) if self.emitters else ()

  @property
  def finds(self) -> dict[str, int]:
    """Number of elites by what made them."""
    names = self.finders
    return {
      name: int(np.sum(self.found_by % len(names) == i))
      for i, name in enumerate(names)
    }


def read(run_path: pathlib.Path) -> tuple[Elites | None, list[str]]:
  """Reads the latest repertoire of a run that can be read.

  Args:
    run_path: directory of the run.

  Returns:
    The elites, if there are any, and what could not be read.
  """
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
      again = _read_again(path, elites) if path.exists() else None
      return dataclasses.replace(elites, again=again), problems
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
      problems.append(f"{path} can't be read: {error}")
    return elites, problems
  return None, problems


def to_json(elites: Elites) -> dict[str, object]:
  """Returns the picture, and the table of each elite that a click shows."""
  where = heatmaps.places(elites)
  chosen = Trace(
    [], [], color=ORANGE, width=0, symbol="circle-open", sizes=16,
    in_legend=False, hover="skip",
  )  # fmt: skip
  panel = heatmaps.panel(elites, where)._replace(traces=[chosen])
  names = ("episode return", *elites.names)
  found = [elites.fitness, *elites.descriptors.T]
  columns = [_column(*pair) for pair in zip(names, found, strict=True)]
  if elites.again is not None:
    times = f"{elites.again.num_episodes} times again"
    columns += [
      _column(f"{name}, {times}", mean) | {"spread": numbers(spread)}
      for name, mean, spread in zip(
        names, elites.again.mean.T, elites.again.spread.T, strict=True
      )
    ]
  columns += [_column(*item) for item in elites.hyperparams.items()]
  if elites.finders:
    texts = [elites.finders[i] for i in elites.found_by]
    columns.append({"name": "found by", "texts": texts})
  position = np.full((len(elites.cells), 2), 0.5, np.float32)
  position[:, : len(elites.names)] = elites.descriptors[:, :2]
  return {
    "figure": with_plotly.draw(Figure([panel], _HEIGHT)),
    "image": where.cells.tolist(),
    "num_cells": elites.num_cells,
    "cells": elites.cells.tolist(),
    "best": int(np.argmax(elites.fitness)) if len(elites.fitness) else None,
    "position": [numbers(x) for x in position.T],
    "columns": columns,
  }


def numbers(values: np.ndarray) -> list[float]:
  """Returns numbers with few digits."""
  return [float(f"{value:.6g}") for value in values.tolist()]


def _column(name: str, values: np.ndarray) -> dict[str, object]:
  """Returns a row of the table of all elites."""
  return {"name": name, "values": numbers(values)}


def _read(path: pathlib.Path, step: int) -> Elites:
  """Reads the elites of a file."""
  with storage.opened(path) as (arrays, record):
    cells, descriptors = arrays["cells"], arrays["descriptors"]
    tessellation, config = record["tessellation"], record["config"] or {}
    shape, size = tessellation.get("shape"), descriptors.shape[1]
    centroids = arrays.get("centroids")
    num_cells = tessellation.get("num_cells", len(descriptors))
    expected = num_cells if centroids is None else len(centroids)
    if len(descriptors) != expected or (shape and np.prod(shape) != expected):
      raise ValueError("it has descriptors of other cells")
    bounded = tessellation if "lower" in tessellation else tessellation["grid"]
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
    names = config.get("descriptor_names") or [
      f"descriptor {i + 1}" for i in range(size)
    ]
    found_by = np.array(config.get("found_by", []), np.int32)
    if config.get("emitters") and found_by.shape != cells.shape:
      raise ValueError("it doesn't name the emitter of each elite")
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
      num_cells=expected,
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
  values = np.concatenate([fitness[..., None], descriptors], axis=2)
  num_episodes = values.shape[1]
  spread = np.full_like(values[:, 0], np.nan)
  if num_episodes > 1:
    spread = values.std(axis=1, ddof=1)
  return Again(num_episodes, values.mean(axis=1), spread)
