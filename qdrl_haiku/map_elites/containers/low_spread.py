"""A container whose elites do the same in each episode: ME-LS.

Macé et al. (2023), "The quality-diversity transformer", arXiv:2303.16207.
"""

import jax.numpy as jnp

from qdrl_haiku.map_elites.candidates import Candidates
from qdrl_haiku.map_elites.containers.container import Container, one_per_place
from qdrl_haiku.map_elites.repertoire import Repertoire, best_of_cells
from qdrl_haiku.map_elites.tessellation import Tessellation
from qdrl_haiku.types import Array

SPREAD = "spread"
"""Name of the extra that says how far an individual's episodes differ."""


def low_spread(tessellation: Tessellation) -> Container:
  """Keeps one in each cell; a fitter one of no more spread replaces it.

  An individual's cell is that of its mean descriptor, not, as in the paper, the
  one where most of its episodes were. `SPREAD` is kept beside it.
  """
  cells = tessellation.cells_for("container=low_spread")
  return one_per_place(cells, _places, "low_spread")._replace(keeps=(SPREAD,))


def descriptor_spread(descriptors: Array) -> Array:
  """Returns the mean distance of pairs of [..., N, D], [...]; 0 if N is 1."""
  number = descriptors.shape[-2]
  difference = descriptors[..., None, :] - descriptors[..., None, :, :]
  distances = jnp.sqrt(jnp.sum(difference**2, axis=-1))
  return jnp.sum(distances, axis=(-2, -1)) / max(number * (number - 1), 1)


def _places(repertoire: Repertoire, new: Candidates) -> Array:
  """Decides where individuals are written, as a `PlacesFn`."""
  cells = repertoire.tessellation.cells_for("container=low_spread")
  spreads = jnp.where(repertoire.occupied, repertoire.extras[SPREAD], jnp.inf)
  before = spreads.at[cells.cell(new.descriptors)].get(mode="clip")
  return best_of_cells(
    repertoire, new._replace(valid=new.valid & (new.extras[SPREAD] <= before)))
