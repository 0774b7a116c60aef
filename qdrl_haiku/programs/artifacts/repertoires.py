"""The repertoire that a run left behind, and the elites in it."""

import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from qdrl_haiku import learners, map_elites
from qdrl_haiku.map_elites import storage
from qdrl_haiku.programs.storage.directory import RunDirectory


def repertoire_files_of_run(path: pathlib.Path) -> dict[int, pathlib.Path]:
  """Returns the files in a run's directory by step, the latest first."""
  files = (path / "repertoire").glob("*.npz")
  found = {int(x.stem): x for x in files if x.stem.isdecimal()}
  return dict(sorted(found.items(), reverse=True))


def read_latest_repertoire(
  learner: learners.Learner, logdir: str
) -> tuple[map_elites.Repertoire, int]:
  """Reads the repertoire that a run wrote last, as `read_repertoire` does."""
  directory = RunDirectory(logdir)
  directory.settings()
  for step, path in repertoire_files_of_run(directory.path).items():
    return read_repertoire(learner, path), step
  raise ValueError(
    f"{logdir} has nothing in repertoire/; name the directory of a run of "
    "train_me_pbt.py.")


def read_repertoire(
  learner: learners.Learner, path: pathlib.Path
) -> map_elites.Repertoire:
  """Reads a repertoire that a run wrote, whichever container shows it."""
  like = jax.eval_shape(
    lambda key: map_elites.Elite(
      learner.genotype(learner.init(key)),
      jax.tree.map(jnp.float32, learner.hyperparams)),
    jax.random.key(0))
  try:
    repertoire = jax.device_get(map_elites.Repertoire.load(path, like))
  except OSError as error:
    raise ValueError(
      f"{path} can't be read: {error.strerror}; fix that first.") from error
  except ValueError as error:
    storage.read_stored_repertoire_config(path)  # Or it is no repertoire.
    raise ValueError(
      f"{path} holds agents of another kind, or is damaged; use the learner, "
      "the environment and the layer sizes of that run.") from error
  if not repertoire.occupied.any():
    raise ValueError(f"{path} has no elite; wait for the next one.")
  return repertoire


def check_repertoire_cell(repertoire: map_elites.Repertoire, cell: int) -> None:
  """Refuses a cell that holds no elite."""
  num_cells = repertoire.tessellation.num_cells
  exists = 0 <= cell < num_cells
  if exists and repertoire.occupied[cell]:
    return
  fault = "is empty" if exists else f"is none of 0 to {num_cells - 1}"
  near = np.asarray(repertoire.centroids)[np.clip(cell, 0, num_cells - 1)]
  raise ValueError(
    f"cell {cell} {fault}; the nearest that holds an elite is "
    f"{nearest_occupied_cell(repertoire, near)}.")


def elite_by_weights(
  repertoire: map_elites.Repertoire, weights: tuple[float, ...],
  cell: int | None = None,
) -> int:
  """Finds the elite with the largest weighted sum of objectives.

  Args:
    repertoire: with M objectives.
    weights: M numbers.
    cell: only elites in the same cell as the one in this place count; None for
      all.

  Returns:
    The place of the elite.

  Raises:
    ValueError: if the repertoire has another number of objectives, or none.
  """
  objectives = repertoire.extras.get(map_elites.OBJECTIVES)
  if objectives is None:
    raise ValueError(
      "the repertoire knows no objectives; leave it out, or train with "
      "--container=mome.")
  if objectives.shape[1] != len(weights):
    raise ValueError(
      f"there are {objectives.shape[1]} objectives; give one number of each.")
  among = np.asarray(repertoire.occupied)
  grid = getattr(repertoire.tessellation, "grid", None)
  if cell is not None and grid is not None:
    cells = np.asarray(grid.cell(repertoire.descriptors))
    among = among & (cells == cells[cell])
  sums = np.asarray(objectives, np.float64) @ np.asarray(weights)
  return int(np.argmax(np.where(among, sums, -np.inf)))


def nearest_occupied_cell(
  repertoire: map_elites.Repertoire, descriptor: npt.ArrayLike
) -> int:
  """Finds the cell with an elite that is nearest to a descriptor."""
  lower, upper = repertoire.bounds
  point = np.asarray(descriptor, np.float64)
  if point.shape != lower.shape or not np.isfinite(point).all():
    raise ValueError(
      f"the descriptor doesn't fit; give {len(lower)} finite numbers, from "
      f"{','.join(f'{x:g}' for x in lower)} to "
      f"{','.join(f'{x:g}' for x in upper)}.")
  point = np.clip(point, lower, upper)
  offsets = (np.asarray(repertoire.centroids) - point) / (upper - lower)
  distances = np.sum(offsets**2, axis=1)
  return int(np.argmin(np.where(repertoire.occupied, distances, np.inf)))
