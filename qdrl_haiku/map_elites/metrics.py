"""Measures the quality and the diversity of a repertoire."""

import jax.numpy as jnp

from qdrl_haiku.map_elites.repertoire import Repertoire
from qdrl_haiku.types import Array, Metrics


def qd_score(repertoire: Repertoire, offset: float = 0.0) -> Array:
  """Sums fitness + offset over the occupied cells (Pugh et al., 2015).

  Args:
    repertoire: any; one without cells is seen in those of its grid, if any.
    offset: added to the fitness of each individual; minus the least return
      that an episode can have, so that filling a cell never lowers the score.

  Returns:
    [], 0 if every cell is empty.
  """
  repertoire = repertoire.in_cells()
  occupied = repertoire.occupied
  return jnp.sum(jnp.where(occupied, repertoire.fitness + offset, 0))


def coverage(repertoire: Repertoire) -> Array:
  """Returns the share of cells that are occupied, [], in percent.

  Args:
    repertoire: any; for one without cells see `qd_score`.
  """
  repertoire = repertoire.in_cells()
  return 100 * jnp.sum(repertoire.occupied) / repertoire.occupied.size


def max_fitness(repertoire: Repertoire) -> Array:
  """Returns the highest fitness, [], NaN if every cell is empty."""
  return jnp.where(
    jnp.any(repertoire.occupied), jnp.max(repertoire.fitness), jnp.nan
  )


def metrics(repertoire: Repertoire, offset: float = 0.0) -> Metrics:
  """Returns the measures of a repertoire by the names in a run's logs.

  Args:
    repertoire: any.
    offset: of the QD-score, see `qd_score`.

  Returns:
    `qd/qd_score`, `qd/coverage` in percent, `qd/max_fitness`, and
    `qd/num_outside`, how many descriptors were outside the bounds so far;
    without cells `qd/num_elites` too.
  """
  cells = repertoire.in_cells()
  numbers = {
    "qd/qd_score": qd_score(cells, offset),
    "qd/coverage": coverage(cells),
    "qd/max_fitness": max_fitness(repertoire),
    "qd/num_outside": repertoire.num_outside,
  }
  if not repertoire.has_cells:
    numbers["qd/num_elites"] = jnp.sum(repertoire.occupied)
  return numbers
