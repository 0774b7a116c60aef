"""Repertoires of a plane that tests draw, write and read."""

import jax
import jax.numpy as jnp

from qdrl_haiku import map_elites


def repertoire(tessellation, descriptors, fitness):
  """Returns a repertoire, on the host, of elites [0, 1], [2, 3], ..."""
  elite = map_elites.Elite(jnp.zeros(2), {"rate": jnp.zeros(())})
  size = len(fitness)
  elites = map_elites.Elite(
    jnp.arange(2.0 * size).reshape(size, 2), {"rate": jnp.ones(size)}
  )
  add = jax.jit(lambda empty, *individuals: empty.add(*individuals))
  return jax.device_get(
    add(
      map_elites.Repertoire.init(elite, tessellation),
      elites,
      jnp.array(fitness),
      jnp.array(descriptors).reshape(size, -1),
    )
  )


GRID = map_elites.Grid((4, 2), (0.0, -1.0), (8.0, 1.0))
PLANE = repertoire(GRID, [[1.0, -0.5], [7.0, 0.5]], [10.0, 20.0])
