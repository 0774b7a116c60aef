"""Writes a run's repertoire."""

import json
import zipfile
from typing import Any, NamedTuple

import jax
import numpy as np

from qdrl_haiku import environments, map_elites, types
from qdrl_haiku.distributed import hosts, sharding
from qdrl_haiku.runs import metrics
from qdrl_haiku.runs.reevaluation import Reevaluation
from qdrl_haiku.storage.directory import RunDirectory
from qdrl_haiku.training.illumination import Illumination
from qdrl_haiku.training.setup import Setup

_CENTROIDS = "centroids.npz"
_CORRECTED = "corrected.json"
_FOLDER = "repertoire"
_REEVALUATIONS = "reevaluation"


class Finders(NamedTuple):
  """Holds which emitter found which elite.

  Attributes:
    names: of the emitters.
    found_by: int32 [C], one of them; -1 where it's none of theirs.
  """

  names: tuple[str, ...]
  found_by: types.Array


def first_row(
  setup: Setup, state: Illumination, seed: int
) -> dict[str, Any]:
  """Returns what is known of the first genotypes, before any generation."""
  assert setup.map_elites is not None
  repertoire_metrics = map_elites.metrics(
    state.repertoire, setup.map_elites.qd_offset
  )
  return metrics.qd_row(jax.device_get(repertoire_metrics)) | {
    "generation": 0,
    "step": 0,
    "walltime": 0.0,
    "seed": seed,
    "total_env_steps": int(state.initial_steps),
  }


def write_centroids(
  directory: RunDirectory, tessellation: map_elites.Tessellation
) -> None:
  """Writes `centroids.npz`, which takes long to find, for a resumed run."""
  if isinstance(tessellation, map_elites.CVT):
    directory.write_arrays(
      _CENTROIDS, {"centroids": np.asarray(tessellation.centroids)}
    )


def read_centroids(directory: RunDirectory) -> np.ndarray | None:
  """Reads what `write_centroids` wrote."""
  try:
    return np.load(directory.path / _CENTROIDS)["centroids"]
  except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
    return None


def write(
  directory: RunDirectory,
  repertoire: map_elites.Repertoire,
  descriptor: environments.Descriptor | None,
  step: int,
  settings: dict[str, Any],
  emitters: Finders | None = None,
  found: Reevaluation | None = None,
) -> None:
  """Writes `repertoire/<step>.npz` and draws `plots/repertoire_<step>.png`."""
  assert descriptor is not None
  repertoire = sharding.to_host(repertoire)
  more: dict[str, Any] = {"descriptor_names": descriptor.names}
  if emitters is not None:
    found_by = sharding.to_host(emitters.found_by)[repertoire.occupied]
    more |= {"emitters": emitters.names, "found_by": found_by.tolist()}
  if not hosts.is_first():
    return
  folder, plots = directory.path / _FOLDER, directory.path / "plots"
  for path in (folder, plots):
    path.mkdir(exist_ok=True)
  repertoire.save(
    folder / f"{step}.npz", settings | more
  )
  from qdrl_haiku.drawing.heatmaps import heatmap

  corrected = None if found is None else found.corrected
  heatmap(repertoire, descriptor.names, corrected).savefig(
    plots / f"repertoire_{step}.png", dpi=120
  )


def write_reevaluation(
  directory: RunDirectory, found: Reevaluation, step: int, offset: float
) -> None:
  """Writes `reevaluation/<step>.npz` and `corrected.json`.

  The first has all episodes of all elites, the second the metrics of the elites
  in an empty repertoire, by their means, as `metrics.jsonl` has them of the
  repertoire itself.
  """
  if not hosts.is_first():
    return
  (directory.path / _REEVALUATIONS).mkdir(exist_ok=True)
  directory.write_arrays(
    f"{_REEVALUATIONS}/{step}.npz",
    {
      "cells": found.cells,
      "fitness": found.fitness,
      "descriptors": found.descriptors,
    },
  )
  corrected = jax.device_get(map_elites.metrics(found.corrected, offset))
  directory.write_json(
    _CORRECTED,
    metrics.qd_row(corrected) | {"num_reevaluations": found.fitness.shape[1]},
  )


def known_reevaluations(directory: RunDirectory) -> int:
  """Returns how often each elite was evaluated again for `corrected.json`."""
  try:
    text = (directory.path / _CORRECTED).read_text()
    return int(json.loads(text)["num_reevaluations"])
  except (OSError, ValueError, KeyError):
    return 0
