"""A container whose cells accept more than improvements: CMA-MAE.

Fontaine and Nikolaidis (2022), "Covariance matrix adaptation MAP-annealing",
arXiv:2205.10752.
"""

import dataclasses
from collections.abc import Mapping

import jax
import jax.numpy as jnp

from qdrl_haiku import checks
from qdrl_haiku.config import Settings, setting
from qdrl_haiku.map_elites.candidates import Candidates
from qdrl_haiku.map_elites.containers.container import Container, one_per_place
from qdrl_haiku.map_elites.emitters.emitter import Evaluated
from qdrl_haiku.map_elites.repertoire import Repertoire, best_of_cells
from qdrl_haiku.map_elites.tessellation import Tessellation
from qdrl_haiku.types import Array, Tree

THRESHOLD = "threshold"
"""Name of the extra that says what fitness has to exceed in a cell."""


@dataclasses.dataclass(frozen=True)
class SoftThresholds(Settings):
  """Says how fast cells get demanding (--container=soft)."""

  title = "Containers"

  learning_rate: float = setting(
    0.01,
    "Share of the way to the accepted agents' returns that a cell's threshold "
    "goes, with --container=soft: 1 is MAP-Elites, 0 never demands more.",
    low=0, high=1, flag="threshold_learning_rate", needs="thresholds")
  minimum: float | None = setting(
    None,
    "Threshold of an empty cell, with --container=soft; by default minus the "
    "number that is added to returns in the QD score.",
    low=-checks.LARGEST_FLOAT, high=checks.LARGEST_FLOAT,
    flag="threshold_min", needs="thresholds")


def soft_cells(
  tessellation: Tessellation, learning_rate: float, threshold_min: float
) -> Container:
  """Keeps the fittest of each cell, and thresholds that grow slowly.

  A cell's threshold, by which `cma_emitter` ranks, is the extra `THRESHOLD`.
  Where n individuals of a batch exceed a threshold, it moves towards their mean
  fitness, by the share 1 - (1 - learning rate)^n.

  Args:
    tessellation: of C cells.
    learning_rate: alpha, in [0, 1].
    threshold_min: finite, of empty cells; at or below any fitness.
  """

  def put(state: Repertoire, thresholds: Array) -> Repertoire:
    return dataclasses.replace(
      state, extras=state.extras | {THRESHOLD: thresholds})

  def init(genotype: Tree, extras: Mapping[str, Tree]) -> Repertoire:
    empty = best.init(genotype, {**extras, THRESHOLD: jnp.float32(0)})
    return put(empty, jnp.full_like(empty.fitness, threshold_min))

  def add(state: Repertoire, evaluated: Evaluated) -> Repertoire:
    unknown = jnp.zeros(evaluated.fitness.shape, jnp.float32)
    evaluated = evaluated._replace(extra=evaluated.extra | {THRESHOLD: unknown})
    thresholds = _moved(state, state.candidates(*evaluated), learning_rate)
    return put(best.add(state, evaluated), thresholds)

  best = one_per_place(
    tessellation.cells_for("container=soft"), best_of_cells, "soft_cells")
  return best._replace(init=init, add=add)


def _moved(state: Repertoire, new: Candidates, learning_rate: float) -> Array:
  """Returns the thresholds, moved by those that exceed theirs."""
  before = state.extras[THRESHOLD]
  cells = state.tessellation.cells_for("container=soft")
  found = jnp.where(new.valid, cells.cell(new.descriptors), before.size)
  exceeded = before.at[found].get(mode="fill", fill_value=jnp.inf)
  found = jnp.where(new.fitness > exceeded, found, before.size)
  # In an order of their own, since a sum of floats depends on it.
  found, fitness = jax.lax.sort((found, new.fitness), num_keys=2)

  def joined(x: tuple[Array, ...], y: tuple[Array, ...]) -> tuple[Array, ...]:
    same = x[0] == y[0]
    return y[0], y[1] + same * x[1], y[2] + same * x[2]

  found, num, total = jax.lax.associative_scan(
    joined, (found, jnp.ones_like(fitness), fitness))
  is_last = jnp.diff(found, append=before.size + 1) != 0
  kept = (1 - learning_rate) ** num
  moved = kept * before.at[found].get(mode="clip") + (1 - kept) * total / num
  return before.at[jnp.where(is_last, found, before.size)].set(
    moved, mode="drop")
