"""A user's container: the fittest stay, wherever they are."""

import jax.numpy as jnp

from qdrl_haiku import map_elites


class Fittest(map_elites.DominatedNovelty):
  def places(self, valid, fitness, descriptors, hashes):
    del descriptors, hashes
    num_places, num_new = self.fitness.shape[0], fitness.shape[0]
    # Incumbents come first, and so win where they are equally fit.
    both = jnp.concatenate([self.fitness, jnp.where(valid, fitness, -jnp.inf)])
    order = jnp.argsort(-both, stable=True)
    stays = jnp.zeros(both.shape, bool).at[order[:num_places]].set(True)
    stays &= both > -jnp.inf
    free = jnp.argsort(stays[:num_places], stable=True)
    turns = jnp.cumsum(stays[num_places:]) - 1
    beyond = num_places + jnp.arange(num_new)
    return jnp.where(stays[num_places:], free[turns], beyond).astype(jnp.int32)


class Places(map_elites.Unstructured):
  repertoire_type = Fittest


def make_container(descriptor):
  return Places(num_cells=12, num_dimensions=descriptor.size)
