"""The elites of a run's repertoire, and what a page shows of them.

They are read with NumPy alone, whatever agents they are.
"""

import dataclasses
import pathlib
import zipfile
from collections.abc import Sequence
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
  """Mean and deviation [N, 1 + D] of N elites' fitness and descriptor."""

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
    emitters: names of what filled the repertoire, in the end `FIRST`; empty
      where there was one emitter.
    found_by: [N], which of them found each; empty likewise.
    again: their second evaluation, if there was one.
  """

  path: pathlib.Path
  step: int
  hyperparams: dict[str, np.ndarray]
  emitters: tuple[str, ...] = ()
  found_by: Sequence[int] = ()
  again: Again | None = None

  @property
  def finds(self) -> dict[str, int]:
    """Number of elites by what made them."""
    return {x: self.found_by.count(i) for i, x in enumerate(self.emitters)}


def read_elite_table(run_path: pathlib.Path) -> tuple[Elites | None, list[str]]:
  """Reads the latest elites that a run has, and says what can't be read."""
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
    if path.exists():
      try:
        again = _read_again(path, elites)
        elites = dataclasses.replace(elites, again=again)
      except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        problems.append(f"{path} can't be read: {error}")
    return elites, problems
  return None, problems


def elite_table_to_json(elites: Elites) -> dict[str, object]:
  """Returns the picture, and the table of each elite that a click shows."""
  where = heatmaps.heatmap_places(elites)
  chosen = Trace(
    [], [], color=ORANGE, width=0, symbol="circle-open", sizes=16,
    in_legend=False, hover="skip",
  )  # fmt: skip
  panel = heatmaps.heatmap_panel(elites, where)._replace(traces=[chosen])
  names = ("episode return", *elites.names)
  found = [elites.fitness, *elites.descriptors.T]
  columns = [_column(*pair) for pair in zip(names, found, strict=True)]
  if elites.again is not None:
    num_episodes, mean, spread = elites.again
    columns += [
      _column(f"{name}, {num_episodes} times again", x)
      | {"spread": elite_table_numbers(y)}
      for name, x, y in zip(names, mean.T, spread.T, strict=True)
    ]
  columns += [_column(*item) for item in elites.hyperparams.items()]
  if elites.emitters:
    texts = [elites.emitters[i] for i in elites.found_by]
    columns.append({"name": "found by", "texts": texts})
  position = np.full((len(elites.cells), 2), 0.5, np.float32)
  position[:, : len(elites.names)] = elites.descriptors[:, :2]
  return {
    "figure": with_plotly.draw_with_plotly(Figure([panel], _HEIGHT)),
    "image": where.cells.tolist(),
    "num_cells": elites.num_cells,
    "cells": elites.cells.tolist(),
    "best": int(np.argmax(elites.fitness)) if len(elites.fitness) else None,
    "position": [elite_table_numbers(x) for x in position.T],
    "columns": columns,
  }


def elite_table_numbers(values: np.ndarray) -> list[float]:
  """Returns numbers with few digits."""
  return [float(f"{value:.6g}") for value in values.tolist()]


def _column(name: str, values: np.ndarray) -> dict[str, object]:
  """Returns a row of the table of all elites."""
  return {"name": name, "values": elite_table_numbers(values)}


def _read(path: pathlib.Path, step: int) -> Elites:
  """Reads the elites of a file."""
  with storage.open_stored_repertoire(path) as (arrays, record):
    cells, fitness = arrays["cells"], arrays["fitness"]
    descriptors = arrays["descriptors"][cells]
    tessellation, config = record["tessellation"], record["config"] or {}
    shape = tessellation.get("shape")
    bounded = tessellation if "lower" in tessellation else tessellation["grid"]
    if not bounded:
      lower, upper = storage.stored_repertoire_extent(
        descriptors.astype(np.float64)
      )
      bounded = {"lower": lower, "upper": upper}
    hyperparams = {
      name.removeprefix(_HYPERPARAMS): arrays[name]
      for name in arrays
      if name.startswith(_HYPERPARAMS)
    }
    if not all(x.shape == cells.shape for x in hyperparams.values()):
      raise ValueError("its hyperparameters are no numbers, one per elite")
    names = [f"descriptor {i + 1}" for i in range(descriptors.shape[1])]
    emitters = tuple(config.get("emitters", ()))
    emitters += (FIRST,) if emitters else ()
    # Of an elite that no emitter made it's -1.
    found_by = [i % len(emitters) for i in config.get("found_by", [])]
    if emitters and len(found_by) != len(cells):
      raise ValueError("it doesn't name the emitter of each elite")
    return Elites(
      path=path,
      step=step,
      cells=cells,
      fitness=fitness[cells],
      descriptors=descriptors,
      hyperparams=hyperparams,
      names=config.get("descriptor_names") or names,
      lower=np.array(bounded["lower"], np.float64),
      upper=np.array(bounded["upper"], np.float64),
      shape=tuple(shape) if shape else None,
      centroids=arrays.get("centroids"),
      num_cells=len(fitness),
      emitters=emitters,
      found_by=found_by,
    )


def _read_again(path: pathlib.Path, elites: Elites) -> Again:
  """Reads what `runs.repertoires` wrote of a second look at these elites."""
  with np.load(path) as file:
    fitness, descriptors = file["fitness"], file["descriptors"]
    if not np.array_equal(file["cells"], elites.cells):
      raise ValueError("it is of other elites")
  values = np.concatenate([fitness[..., None], descriptors], axis=2)
  num_episodes = values.shape[1]
  spread = np.full_like(values[:, 0], np.nan)
  if num_episodes > 1:
    spread = values.std(axis=1, ddof=1)
  return Again(num_episodes, values.mean(axis=1), spread)
