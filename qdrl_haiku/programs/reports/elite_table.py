"""The elites of a run's repertoire, and what a page shows of them.

They are read with NumPy alone, whatever agents they are.
"""

import pathlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from qdrl_haiku.map_elites import OBJECTIVES, Repertoire, Unstructured, storage
from qdrl_haiku.map_elites.emitters.multi import FOUND_BY
from qdrl_haiku.programs.artifacts import repertoires, statistics
from qdrl_haiku.programs.drawing import heatmaps
from qdrl_haiku.programs.drawing.figure import ORANGE, Figure, Trace
from qdrl_haiku.programs.reports import with_plotly
from qdrl_haiku.types import Record

_HEIGHT = 560
_HYPERPARAMS = "genotypes/hyperparams/"
_FOUND_BY = f"extras/{FOUND_BY}"
_OBJECTIVES = f"extras/{OBJECTIVES}"
FIRST = "the first agents"
"""Label of elites that no emitter made."""


class Again(NamedTuple):
  """Mean and deviation [N, 1 + D] of N elites' fitness and descriptor."""

  num_episodes: int
  mean: np.ndarray
  spread: np.ndarray


class Elites(NamedTuple):
  """Holds a run's repertoire of N elites in C cells."""

  path: pathlib.Path  # Of its file.
  step: int  # When it was written, environment steps per agent.
  repertoire: Repertoire  # On the host, without genotypes.
  cells: np.ndarray  # [N], those with elites.
  names: Sequence[str]  # Of the D axes.
  hyperparams: dict[str, np.ndarray]  # float32 [N] by name.
  # The emitters that filled the repertoire, then `FIRST`; empty if only one.
  emitters: tuple[str, ...]
  found_by: Sequence[int]  # [N], which emitter found each; empty if only one.
  again: Again | None = None  # Their second evaluation, if there was one.
  objectives: Sequence[str] = ()  # Names of the elites' objectives.

  @property
  def finds(self) -> dict[str, int]:
    """Number of elites by what made them."""
    return {x: self.found_by.count(i) for i, x in enumerate(self.emitters)}


def read_elite_table(run_path: pathlib.Path) -> tuple[Elites | None, list[str]]:
  """Reads a run's latest elites; returns messages about damaged files, too."""
  problems: list[str] = []
  for step, file in repertoires.repertoire_files_of_run(run_path).items():
    try:
      elites = _read(file, step)
    except (OSError, ValueError) as error:
      problems.append(str(error))
      continue
    path = run_path / "reevaluation" / f"{step}.npz"
    if path.exists():
      try:
        elites = elites._replace(again=_read_again(path, elites.cells))
      except Exception as error:  # NumPy, zipfile and zlib raise many kinds.
        problems.append(f"{path} can't be read: {error}")
    return elites, problems
  return None, problems


def elite_table_to_json(elites: Elites) -> Record:
  """Returns the picture, and the table of each elite that a click shows."""
  repertoire, cells = elites.repertoire, elites.cells
  drawn, whose = heatmaps.heatmap_cells(repertoire)
  image = heatmaps.heatmap_places(drawn)
  chosen = Trace(
    [], [], color=ORANGE, width=0, symbol="circle-open", sizes=16,
    in_legend=False, hover="skip")
  panel = heatmaps.heatmap_panel(drawn, elites.names, image)
  panel = panel._replace(traces=[chosen])
  names = ("episode return", *elites.names)
  fitness = repertoire.fitness[cells]
  descriptors = repertoire.descriptors[cells]
  found = [fitness, *descriptors.T]
  columns = [_column(*pair) for pair in zip(names, found, strict=True)]
  if elites.again is not None:
    num_episodes, mean, spread = elites.again
    columns += [
      _column(f"{name}, {num_episodes} times again", x)
      | {"spread": elite_table_numbers(y)}
      for name, x, y in zip(names, mean.T, spread.T, strict=True)]
  fronts = _fronts(elites, chosen) if elites.objectives else {}
  if fronts:
    columns += map(
      _column, elites.objectives, repertoire.extras[OBJECTIVES][cells].T)
  columns += [_column(*item) for item in elites.hyperparams.items()]
  if elites.emitters:
    texts = [elites.emitters[i] for i in elites.found_by]
    columns.append({"name": "found by", "texts": texts})
  position = np.full((len(cells), 2), 0.5, np.float32)
  position[:, : len(elites.names)] = descriptors[:, :2]
  return {
    "figure": with_plotly.draw_with_plotly(Figure([panel], _HEIGHT)),
    "image": np.append(whose, -1)[image].tolist(), **fronts,
    "num_cells": repertoire.fitness.size, "cells": cells.tolist(),
    "best": int(np.argmax(fitness)) if len(cells) else None,
    "position": [elite_table_numbers(x) for x in position.T],
    "columns": columns}


def _fronts(elites: Elites, chosen: Trace) -> dict[str, object]:
  """Returns the picture of all elites' objectives, and who is in a front."""
  objectives = elites.repertoire.extras[OBJECTIVES][elites.cells]
  panel = heatmaps.front_panel(objectives, elites.objectives)
  panel = panel._replace(traces=[*panel.traces, chosen])
  tessellation = elites.repertoire.tessellation
  fronts = np.zeros(len(elites.cells), int)
  if isinstance(tessellation, Unstructured) and tessellation.grid is not None:
    descriptors = elites.repertoire.descriptors[elites.cells]
    fronts = np.asarray(tessellation.grid.cell(descriptors))
  return {
    "fronts": with_plotly.draw_with_plotly(Figure([panel], _HEIGHT)),
    "front_of": fronts.tolist(),
    "objectives": [elite_table_numbers(x) for x in objectives[:, :2].T]}


def elite_table_numbers(values: np.ndarray) -> list[float]:
  """Returns numbers with few digits."""
  return [float(f"{value:.6g}") for value in values.tolist()]


def _column(name: str, values: np.ndarray) -> dict[str, object]:
  """Returns a row of the table of all elites."""
  return {"name": name, "values": elite_table_numbers(values)}


def _read(path: pathlib.Path, step: int) -> Elites:
  with storage.open_stored_repertoire(path) as (arrays, record):
    cells, descriptors = arrays["cells"], arrays["descriptors"]
    config = record["config"] or {}
    tessellation = storage.make_stored_tessellation(record, arrays)
    objectives, extras = config.get("objective_names", ()), {}
    if objectives:
      rows = arrays[_OBJECTIVES]
      extras[OBJECTIVES] = np.zeros((len(descriptors), rows.shape[1]))
      extras[OBJECTIVES][cells] = rows
    repertoire = Repertoire(
      (), arrays["fitness"], descriptors, arrays["num_outside"], tessellation,
      extras, container=record["container"])
    hyperparams = {
      name.removeprefix(_HYPERPARAMS): arrays[name]
      for name in arrays
      if name.startswith(_HYPERPARAMS)}
    names = [f"descriptor {i + 1}" for i in range(descriptors.shape[1])]
    names = config.get("descriptor_names") or names
    emitters = tuple(config.get("emitters", ()))
    emitters += (FIRST,) if emitters else ()
    found_by = config.get("found_by", [])  # In files of 0.4.
    if emitters and _FOUND_BY in arrays:
      found_by = (arrays[_FOUND_BY] - 1).tolist()
    # -1, of an elite that no emitter made, becomes the index of `FIRST`.
    found_by = [i % len(emitters) for i in found_by]
    return Elites(
      path, step, repertoire, cells, names, hyperparams, emitters, found_by,
      objectives=objectives)


def _read_again(path: pathlib.Path, cells: np.ndarray) -> Again:
  """Reads what `runs.repertoire_files` wrote when it evaluated elites again."""
  with np.load(path) as file:
    fitness, descriptors = file["fitness"], file["descriptors"]
    if not np.array_equal(file["cells"], cells):
      raise ValueError("it is of other elites")
  values = np.concatenate([fitness[..., None], descriptors], axis=2)
  return Again(
    values.shape[1], values.mean(axis=1), statistics.episode_spreads(values))
