"""Measures the quality and the diversity of a repertoire."""

import jax.numpy as jnp

from qdrl_haiku.map_elites.repertoire import Repertoire
from qdrl_haiku.types import Metrics


def metrics(repertoire: Repertoire, offset: float = 0.0) -> Metrics:
  """Returns the measures of a repertoire by the names in a run's logs.

  Args:
    repertoire: any; one without cells is seen in those of its grid, if any.
    offset: added to the fitness of each individual; minus the least return
      that an episode can have, so that filling a cell never lowers the score.

  Returns:
    `qd/qd_score`, the sum of fitness + offset over the occupied cells (Pugh et
    al., 2015); `qd/coverage`, their share in percent; `qd/max_fitness`, NaN if
    there are none; and `qd/num_outside`, how many descriptors were outside the
    bounds so far; without cells `qd/num_elites` too.
  """
  cells = repertoire.in_cells()
  occupied = cells.occupied
  numbers = {
    "qd/qd_score": jnp.sum(jnp.where(occupied, cells.fitness + offset, 0)),
    "qd/coverage": 100 * jnp.sum(occupied) / occupied.size,
    "qd/max_fitness": jnp.where(
      jnp.any(repertoire.occupied), jnp.max(repertoire.fitness), jnp.nan),
    "qd/num_outside": repertoire.num_outside}
  if not repertoire.has_cells:
    numbers["qd/num_elites"] = jnp.sum(repertoire.occupied)
  return numbers
