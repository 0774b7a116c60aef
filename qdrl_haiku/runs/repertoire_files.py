"""Writes a run's repertoire, and what its elites are without their luck."""

import json
import zipfile

import jax
import numpy as np

from qdrl_haiku import map_elites, types
from qdrl_haiku.distributed import hosts, sharding
from qdrl_haiku.runs import records, reevaluation
from qdrl_haiku.runs.config import RunConfig
from qdrl_haiku.runs.records import Record, Row
from qdrl_haiku.runs.reevaluation import Reevaluation
from qdrl_haiku.storage.directory import RunDirectory
from qdrl_haiku.training.setup import Setup
from qdrl_haiku.training.state import State

_CENTROIDS = "centroids.npz"
_CORRECTED = "corrected.json"
_FOLDER = "repertoire"
_REEVALUATIONS = "reevaluation"


class RepertoireFiles:
  """Writes what a run's directory has of its repertoire, at intervals."""

  def __init__(
    self,
    setup: Setup,
    config: RunConfig,
    directory: RunDirectory,
    settings: Record,
  ) -> None:
    """Writes the centroids, which take long to find, for a resumed run."""
    assert setup.map_elites is not None
    self._setup = setup
    self._qd = setup.map_elites
    self._config = config
    self._directory = directory
    self._settings = settings
    self._reevaluate: reevaluation.ReevaluateFn | None = None
    if config.num_reevaluations:
      self._reevaluate = reevaluation.make_reevaluate(
        setup, config.num_reevaluations
      )
    if isinstance(self._qd.tessellation, map_elites.CVT):
      directory.write_arrays(
        _CENTROIDS,
        {"centroids": np.asarray(self._qd.tessellation.centroids)},
      )

  def first_row(self, state: State) -> Row:
    """Returns what is known of the first genotypes, before any generation."""
    found = map_elites.metrics(state.repertoire, self._qd.qd_offset)
    return records.numbers(jax.device_get(found))

  def record(
    self,
    state: State,
    run_key: types.Key,
    generation: int,
    step: int,
    is_last: bool,
  ) -> Row:
    """Writes what is due after a generation; returns columns of its row."""
    config, found = self._config, None
    if is_last or _is_multiple(generation, config.reevaluation_interval):
      found = self._look_again(state, run_key)
    if (
      is_last
      or found is not None
      or _is_multiple(generation, config.repertoire_interval)
    ):
      self._write(state, step, found)
    return reevaluation.row(state.repertoire, found, self._qd.qd_offset)

  def finish(self, state: State, run_key: types.Key, step: int) -> None:
    """Evaluates elites of a finished run again, if asked another number."""
    if self._config.num_reevaluations != _known(self._directory):
      found = self._look_again(state, run_key)
      if found is not None:
        self._write(state, step, found)

  def _look_again(
    self, state: State, run_key: types.Key
  ) -> Reevaluation | None:
    """Evaluates all elites again, if the run is to."""
    if self._reevaluate is None:
      return None
    key = reevaluation.reevaluation_key(run_key, int(state.generation))
    return self._reevaluate(state.repertoire, key)

  def _write(
    self, state: State, step: int, found: Reevaluation | None
  ) -> None:
    """Writes `repertoire/<step>.npz`, its picture, and what was found."""
    descriptor = self._setup.eval_env.descriptor
    assert descriptor is not None
    repertoire = sharding.to_host(state.repertoire)
    more: Record = {"descriptor_names": descriptor.names}
    if len(self._qd.emitter_names) > 1:
      found_by = sharding.to_host(state.emitter.found_by)
      more |= {
        "emitters": self._qd.emitter_names,
        "found_by": found_by[repertoire.occupied].tolist(),
      }
    if not hosts.is_first():
      return
    folder, plots = (self._directory.path / x for x in (_FOLDER, "plots"))
    for path in (folder, plots):
      path.mkdir(exist_ok=True)
    repertoire.save(folder / f"{step}.npz", {**self._settings, **more})
    from qdrl_haiku.drawing.repertoires import heatmap

    corrected = None if found is None else found.corrected
    heatmap(repertoire, descriptor.names, corrected).savefig(
      plots / f"repertoire_{step}.png", dpi=120
    )
    if found is not None:
      self._write_reevaluation(found, step)

  def _write_reevaluation(self, found: Reevaluation, step: int) -> None:
    """Writes `reevaluation/<step>.npz` and `corrected.json`.

    The first has all episodes of all elites, the second the metrics of the
    elites in an empty repertoire, by their means, as `metrics.jsonl` has them
    of the repertoire itself.
    """
    (self._directory.path / _REEVALUATIONS).mkdir(exist_ok=True)
    self._directory.write_arrays(
      f"{_REEVALUATIONS}/{step}.npz",
      {
        "cells": found.cells,
        "fitness": found.fitness,
        "descriptors": found.descriptors,
      },
    )
    corrected = map_elites.metrics(found.corrected, self._qd.qd_offset)
    self._directory.write_json(
      _CORRECTED,
      records.numbers(jax.device_get(corrected))
      | {"num_reevaluations": found.fitness.shape[1]},
    )


def read_centroids(directory: RunDirectory) -> np.ndarray | None:
  """Reads the centroids of a run."""
  try:
    return np.load(directory.path / _CENTROIDS)["centroids"]
  except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
    return None


def _known(directory: RunDirectory) -> int:
  """Returns how often each elite was evaluated again for `corrected.json`."""
  try:
    text = (directory.path / _CORRECTED).read_text()
    return int(json.loads(text)["num_reevaluations"])
  except (OSError, ValueError, KeyError):
    return 0


def _is_multiple(generation: int, interval: int | None) -> bool:
  """Returns whether something is due that has an interval."""
  return interval is not None and generation % interval == 0
