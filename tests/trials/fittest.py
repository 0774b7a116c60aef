"""A user's container: the fittest stay, wherever they are."""

import jax.numpy as jnp

from qdrl_haiku import map_elites


def places(repertoire, new):
  num_places, num_new = repertoire.fitness.shape[0], new.fitness.shape[0]
  # Incumbents come first, and so win where they are equally fit.
  newcomers = jnp.where(new.valid, new.fitness, -jnp.inf)
  both = jnp.concatenate([repertoire.fitness, newcomers])
  order = jnp.argsort(-both, stable=True)
  stays = jnp.zeros(both.shape, bool).at[order[:num_places]].set(True)
  stays &= both > -jnp.inf
  free = jnp.argsort(stays[:num_places], stable=True)
  turns = jnp.cumsum(stays[num_places:]) - 1
  beyond = num_places + jnp.arange(num_new)
  return jnp.where(stays[num_places:], free[turns], beyond).astype(jnp.int32)


def make_container(descriptor):
  return map_elites.one_per_place(
    map_elites.Unstructured(12, descriptor.size), places)
