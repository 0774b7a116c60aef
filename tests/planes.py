"""Repertoires that tests draw, write and read, on the host."""

import jax
import jax.numpy as jnp
import numpy as np

from qdrl_haiku import map_elites


def in_cells(tessellation, cells, elites, fitness, descriptors):
  """Returns a repertoire of elites in these cells, of each the fittest.

  Made by hand: adding takes longer to compile than what it's tested with.
  """
  order = np.argsort(fitness)
  cells = np.asarray(cells)[order]

  def spread(values, empty=0.0):
    values = np.asarray(values)[order]
    shape = (tessellation.num_cells, *values.shape[1:])
    leaf = np.full(shape, empty, np.float32)
    leaf[cells] = values
    return leaf

  return map_elites.Repertoire(
    jax.tree.map(spread, elites), spread(fitness, -np.inf), spread(descriptors),
    np.zeros((), np.int32), tessellation, container="cells")


def repertoire(tessellation, descriptors, fitness):
  """Returns a repertoire of elites [0, 1], [2, 3], ..."""
  size = len(fitness)
  shape = size, tessellation.num_dimensions
  descriptors = np.asarray(descriptors, np.float32).reshape(shape)
  cells = np.arange(size)
  if tessellation.kind != "none":
    cells = tessellation.cell(jnp.asarray(descriptors))
  elites = map_elites.Elite(
    np.arange(2.0 * size).reshape(size, 2), {"rate": np.ones(size)})
  return in_cells(tessellation, cells, elites, fitness, descriptors)


GRID = map_elites.Grid((4, 2), (0.0, -1.0), (8.0, 1.0))
PLANE = repertoire(GRID, [[1.0, -0.5], [7.0, 0.5]], [10.0, 20.0])
