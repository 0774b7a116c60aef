"""Writes a run's repertoire, and what its elites are without their luck."""

import dataclasses
import json
import zipfile

import jax
import numpy as np

from qdrl_haiku import map_elites, prng, types
from qdrl_haiku.distributed import hosts, sharding
from qdrl_haiku.programs.runs import records, reevaluation
from qdrl_haiku.programs.runs.config import RunConfig
from qdrl_haiku.programs.runs.progress import progress_without
from qdrl_haiku.programs.runs.reevaluation import Reevaluation
from qdrl_haiku.programs.storage.directory import RunDirectory
from qdrl_haiku.programs.storage.strict_json import Record
from qdrl_haiku.training import quality_diversity
from qdrl_haiku.training.setup import Setup
from qdrl_haiku.training.state import State

_CENTROIDS = "centroids.npz"
_CORRECTED = "corrected.json"


class RepertoireFiles:
  """Writes what a run's directory has of its repertoire, at intervals."""

  def __init__(
    self, setup: Setup, config: RunConfig, directory: RunDirectory,
    settings: Record,
  ) -> None:
    """Writes the centroids, which take long to find, for a resumed run."""
    self._setup = setup
    self._qd = setup.qd
    self._config = config
    self._directory = directory
    self._settings = settings
    self._reevaluate: reevaluation.ReevaluateFn | None = None
    if number := config.num_reevaluations:
      self._reevaluate = reevaluation.make_reevaluate(setup, number)
    cells = self._qd.container.tessellation
    cells = getattr(cells, "grid", cells)
    if isinstance(cells, map_elites.CVT):
      centroids = np.asarray(cells.centroids)
      directory.write_arrays(_CENTROIDS, {"centroids": centroids})

  def record(
    self, state: State, run_key: types.Key, generation: int, step: int,
    is_last: bool,
  ) -> Record:
    """Writes what is due after a generation; returns columns of its row.

    Args:
      state: of training.
      run_key: the run's.
      generation: counted from 1.
      step: environment steps per agent.
      is_last: whether the run ends with it: then all is due.
    """

    def is_due(interval: int | None) -> bool:
      return is_last or bool(interval and generation % interval == 0)

    found = None
    if is_due(self._config.reevaluation_interval):
      found = self._reevaluate_all(state, run_key)
    if found is not None or is_due(self._config.repertoire_interval):
      self._write(state, step, found)
    elif is_due(self._config.picture_interval):
      self._draw(self._fetched(state), step)
    return reevaluation.reevaluation_row(
      self.shown(state), found, self._qd.qd_offset)

  def finish(self, state: State, run_key: types.Key, step: int) -> None:
    """Evaluates elites again at the end, if that wasn't done as often as asked.

    `state`, `run_key` and `step` are those of its end, as for `record`.
    """
    if self._config.num_reevaluations != _num_reevaluated(self._directory):
      found = self._reevaluate_all(state, run_key)
      if found is not None:
        self._write(state, step, found)

  def shown(self, state: State) -> map_elites.Repertoire:
    """Returns the repertoire that the container shows, in measuring cells."""
    return self._setup.measured(self._qd.container.show(state.repertoire))

  def first_metrics(self, state: State) -> Record:
    """Returns the metrics of the repertoire before the first generation."""
    return records.record_numbers(
      jax.device_get(quality_diversity.repertoire_metrics(
        self._setup, state.repertoire, state.describer)))

  def _reevaluate_all(
    self, state: State, run_key: types.Key
  ) -> Reevaluation | None:
    """Evaluates all elites again, if the run is to."""
    if self._reevaluate is None:
      return None
    key = jax.random.fold_in(run_key, int(state.generation))
    key = jax.random.fold_in(key, prng.OfGeneration.REEVALUATE)
    return self._reevaluate(self.shown(state), state.describer, key)

  def _write(self, state: State, step: int, found: Reevaluation | None) -> None:
    """Writes `repertoire/<step>.npz`, its picture, and what was found."""
    repertoire = self._fetched(state)
    settings = self._settings | {
      "descriptor_names": self._setup.descriptor_names}
    if objectives := self._objectives(repertoire):
      settings["objective_names"] = objectives
    if len(self._qd.emitter_names) > 1:
      settings["emitters"] = self._qd.emitter_names
    if not hosts.is_first_host():
      return
    (self._directory.path / "repertoire").mkdir(exist_ok=True)
    path = self._directory.path / "repertoire" / f"{step}.npz"
    repertoire.save(path, settings)
    self._draw(repertoire, step, None if found is None else found.corrected)
    if found is None:
      return
    # All episodes of all elites; and the corrected repertoire's metrics, by the
    # names that `metrics.jsonl` has.
    (self._directory.path / "reevaluation").mkdir(exist_ok=True)
    parts = ("cells", "fitness", "descriptors")
    self._directory.write_arrays(
      f"reevaluation/{step}.npz", {x: getattr(found, x) for x in parts})
    number = {"num_reevaluations": found.fitness.shape[1]}
    metrics = map_elites.metrics(found.corrected, self._qd.qd_offset)
    self._directory.write_json(
      _CORRECTED, records.record_numbers(jax.device_get(metrics)) | number)


  def _fetched(self, state: State) -> map_elites.Repertoire:
    """Returns the repertoire that is shown, on each host."""
    return dataclasses.replace(
      sharding.fetch_sharded(self.shown(state)),
      container=self._qd.container.name)

  def _objectives(self, repertoire: map_elites.Repertoire) -> tuple[str, ...]:
    """Returns the names of the objectives of elites, if they have several."""
    if map_elites.OBJECTIVES not in repertoire.extras:
      return ()
    assert self._setup.eval_env.objectives is not None
    return self._setup.eval_env.objectives.names

  def _draw(
    self, repertoire: map_elites.Repertoire, step: int,
    corrected: map_elites.Repertoire | None = None,
  ) -> None:
    """Draws `plots/repertoire_<step>.png`."""
    if not hosts.is_first_host():
      return
    from qdrl_haiku.programs.drawing import heatmaps, with_matplotlib

    path = self._directory.path / "plots" / f"repertoire_{step}.png"
    with progress_without("picture of the repertoire"):
      picture = heatmaps.heatmap(
        repertoire, self._setup.descriptor_names, corrected,
        self._objectives(repertoire))
      with_matplotlib.save_with_matplotlib(picture, path)


def read_repertoire_centroids(directory: RunDirectory) -> np.ndarray | None:
  """Reads the centroids of a run."""
  try:
    return np.load(directory.path / _CENTROIDS)["centroids"]
  except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
    return None


def _num_reevaluated(directory: RunDirectory) -> int:
  """Returns how often each elite was evaluated again for `corrected.json`."""
  try:
    text = (directory.path / _CORRECTED).read_text()
    return int(json.loads(text)["num_reevaluations"])
  except (OSError, ValueError, KeyError):
    return 0
