"""What a run notes down of its repertoire, and how that is read again."""

import pathlib
import zipfile
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from qdrl_haiku import environments, learners, map_elites, types
from qdrl_haiku.map_elites import storage
from qdrl_haiku.training import hosts, metrics, reevaluation, sharding
from qdrl_haiku.training.illumination import Illumination
from qdrl_haiku.training.logs import RunDirectory
from qdrl_haiku.training.repertoire_plots import heatmap
from qdrl_haiku.training.setup import Setup

_CENTROIDS = "centroids.npz"
_FOLDER = "repertoire"


def first_row(
  setup: Setup, state: Illumination, seed: int
) -> dict[str, Any]:
  """What is known of the first genotypes, before any generation.

  Args:
    setup: with `map_elites`.
    state: before the first generation.
    seed: of the run.

  Returns:
    Numbers by name, of generation 0.
  """
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
  """Writes `centroids.npz`, which takes long to find, for a resumed run.

  Args:
    directory: of the run.
    tessellation: of its repertoire.
  """
  if isinstance(tessellation, map_elites.CVT):
    directory.write_arrays(
      _CENTROIDS, {"centroids": np.asarray(tessellation.centroids)}
    )


def read_centroids(directory: RunDirectory) -> np.ndarray | None:
  """Reads what `write_centroids` wrote.

  Args:
    directory: of the run.

  Returns:
    The centroids [C, D]; None if they can't be read and must be found again.
  """
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
) -> None:
  """Writes `repertoire/<step>.npz` and draws `plots/repertoire_<step>.png`.

  Args:
    directory: of the run.
    repertoire: of the generation.
    descriptor: of the environment of evaluation.
    step: environment steps per agent so far.
    settings: with which the run was started, to rebuild the agents.
  """
  assert descriptor is not None
  repertoire = sharding.to_host(repertoire)
  if not hosts.is_first():
    return
  folder, plots = directory.path / _FOLDER, directory.path / "plots"
  for path in (folder, plots):
    path.mkdir(exist_ok=True)
  repertoire.save(
    folder / f"{step}.npz", settings | {"descriptor_names": descriptor.names}
  )
  heatmap(repertoire, descriptor.names).savefig(
    plots / f"repertoire_{step}.png", dpi=120
  )


def write_corrected(
  directory: RunDirectory,
  setup: Setup,
  repertoire: map_elites.Repertoire,
  key: types.Key,
  num_reevaluations: int,
) -> None:
  """Writes `corrected.json`: the metrics of the elites, evaluated again.

  All processes evaluate, and the first one writes.

  Args:
    directory: of the run.
    setup: with `map_elites` and a mesh.
    repertoire: of the last generation.
    key: consumed.
    num_reevaluations: episodes of each elite, >= 1.
  """
  plan = setup.map_elites
  assert plan is not None
  corrected = map_elites.metrics(
    reevaluation.reevaluate(setup, repertoire, key, num_reevaluations),
    plan.qd_offset,
  )
  row = metrics.qd_row(jax.device_get(corrected))
  directory.write_json(
    "corrected.json", row | {"num_reevaluations": num_reevaluations}
  )


def read_latest(
  learner: learners.Learner, logdir: str
) -> tuple[map_elites.Repertoire, int]:
  """Reads the repertoire that a run wrote last.

  Args:
    learner: as the run had it.
    logdir: directory of the run.

  Returns:
    The repertoire, of `map_elites.Elite`s, on the host; and the environment
    steps per agent after which it was written.

  Raises:
    ValueError: if there is no such run, if it has no repertoire or an empty
      one, or if its agents are of another kind.
  """
  directory = RunDirectory(logdir)
  directory.settings()
  files = (directory.path / _FOLDER).glob("*.npz")
  steps = [int(path.stem) for path in files if path.stem.isdecimal()]
  if not steps:
    raise ValueError(
      f"{logdir} has nothing in {_FOLDER}/; name the directory of a run of "
      "train_me_pbt.py."
    )
  path = directory.path / _FOLDER / f"{max(steps)}.npz"
  return read(learner, path), max(steps)


def read(
  learner: learners.Learner, path: pathlib.Path
) -> map_elites.Repertoire:
  """Reads a repertoire that a run wrote.

  Args:
    learner: as the run had it.
    path: of the file.

  Returns:
    The repertoire, of `map_elites.Elite`s, on the host.

  Raises:
    ValueError: if the repertoire is damaged or empty, or if its agents are of
      another kind.
  """
  like = jax.eval_shape(
    lambda key: map_elites.Elite(
      learner.genotype(learner.init(key)),
      jax.tree.map(jnp.float32, learner.hyperparams),
    ),
    jax.random.key(0),
  )
  try:
    repertoire = jax.device_get(map_elites.Repertoire.load(path, like))
  except ValueError as error:
    storage.read_config(path)  # Says so where it is no repertoire at all.
    raise ValueError(
      f"{path} holds agents of another kind, or is damaged; use the learner, "
      "the environment and the layer sizes of that run."
    ) from error
  if not repertoire.occupied.any():
    raise ValueError(f"{path} has no elite; wait for the next one.")
  return repertoire


def check_cell(repertoire: map_elites.Repertoire, cell: int) -> None:
  """Checks that a cell holds an elite.

  Args:
    repertoire: with at least one elite, on the host.
    cell: its index.

  Raises:
    ValueError: if there is no such cell, or if it is empty, naming the nearest
      one that is not.
  """
  num_cells = repertoire.tessellation.num_cells
  exists = 0 <= cell < num_cells
  if exists and repertoire.occupied[cell]:
    return
  centroids = np.asarray(repertoire.tessellation.centroids)
  centroid = centroids[np.clip(cell, 0, num_cells - 1)]
  fault = "is empty" if exists else f"is none of 0 to {num_cells - 1}"
  raise ValueError(
    f"cell {cell} {fault}; the nearest that holds an elite is "
    f"{nearest_occupied(repertoire, centroid)}."
  )


def nearest_occupied(
  repertoire: map_elites.Repertoire, descriptor: npt.ArrayLike
) -> int:
  """Finds the cell with an elite that is nearest to a descriptor.

  Args:
    repertoire: with at least one elite, on the host.
    descriptor: [D]; outside of the bounds, the nearest point inside counts.

  Returns:
    Of the cells that hold an elite the one whose centroid is nearest, with the
    bounds scaled to a cube; of several equally near ones the first.

  Raises:
    ValueError: if the descriptor is not D finite numbers.
  """
  tessellation = repertoire.tessellation
  lower, upper = np.array(tessellation.lower), np.array(tessellation.upper)
  point = np.asarray(descriptor, np.float64)
  if point.shape != lower.shape or not np.isfinite(point).all():
    raise ValueError(
      f"the descriptor doesn't fit; give {len(lower)} finite numbers, from "
      f"{','.join(f'{x:g}' for x in lower)} to "
      f"{','.join(f'{x:g}' for x in upper)}."
    )
  point = np.clip(point, lower, upper)
  offsets = (np.asarray(tessellation.centroids) - point) / (upper - lower)
  distances = np.sum(offsets**2, axis=1)
  return int(np.argmin(np.where(repertoire.occupied, distances, np.inf)))
