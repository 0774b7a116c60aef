"""Dominated novelty search: a container without cells.

Bahlous-Boldi et al. (2025), "Dominated novelty search: rethinking local
competition in quality-diversity", arXiv:2502.00593. An individual's score is
its mean distance to the k nearest fitter individuals, infinite for the fittest.
The C individuals with the highest scores stay.

Ties, which the paper leaves open, never depend on the order of a batch. Of
individuals with the same descriptor only the fittest takes part. Of equally fit
ones an incumbent counts as fitter than a newcomer, then the one with the least
descriptor. Of two with the same score the fitter is preferred.
"""

import jax
import jax.numpy as jnp
import numpy as np

from qdrl_haiku.checks import check_count
from qdrl_haiku.map_elites import candidates
from qdrl_haiku.map_elites.containers.container import Container, one_per_place
from qdrl_haiku.map_elites.repertoire import Repertoire
from qdrl_haiku.map_elites.tessellation import Unstructured
from qdrl_haiku.types import Array

# Rows of distances at once.
_ROWS = 128


def dominated_novelty(
  tessellation: Unstructured, num_neighbors: int = 3
) -> Container:
  """Keeps individuals that are fit or far from fitter ones.

  No two have the same descriptor, and those that stay keep their place. Each
  generation compares all pairs by distances in the descriptors' own units.

  Args:
    tessellation: of C places.
    num_neighbors: k, >= 1.
  """
  check_count("num_neighbors", num_neighbors, 1)
  return one_per_place(
    tessellation,
    lambda repertoire, new: _places(repertoire, new, num_neighbors),
    "dominated_novelty")


def _places(
  known: Repertoire, new: candidates.Candidates, num_neighbors: int
) -> Array:
  """Decides where individuals are written, as a `PlacesFn`."""
  scattered = candidates.scatter_candidates
  num_places, num_new = known.fitness.shape[0], new.fitness.shape[0]
  numbers = jnp.arange(num_places + num_new)
  is_new = numbers >= num_places
  new_fitness = jnp.where(new.valid, new.fitness, -jnp.inf)
  new_points = jnp.where(new.valid[:, None], new.descriptors, 0)
  all_fitness = jnp.concatenate([known.fitness, new_fitness])
  points = jnp.concatenate([known.descriptors, new_points])
  more = [jnp.pad(x, (num_places, 0)) for x in new.hashes]
  # The first of each descriptor takes part.
  absent = all_fitness == -jnp.inf
  axes = jnp.unstack(points, axis=1)
  keys = (absent, *axes, -all_fitness, is_new, *more, numbers)
  sorted_keys = jax.lax.sort(keys, num_keys=len(keys))
  is_first = jnp.zeros(numbers.shape, bool)
  for x in sorted_keys[: 1 + len(axes)]:
    is_first |= jnp.concatenate([jnp.ones(1, bool), x[1:] != x[:-1]])
  takes_part = scattered(sorted_keys[-1], is_first & ~sorted_keys[0])
  # From the fittest on.
  order = candidates.order_of_candidates(
    ~takes_part, -all_fitness, is_new, *axes)
  worth = _worths(points[order], takes_part[order], num_neighbors)
  by_worth = jnp.argsort(-worth, stable=True)
  kept_in_order = scattered(by_worth, numbers < num_places) & takes_part[order]
  kept = scattered(order, kept_in_order)
  # The first newcomers get the places of leaving individuals.
  stays = kept[:num_places]
  free = jnp.argsort(
    jnp.where(stays, 2, jnp.where(known.occupied, 0, 1)), stable=True)
  turns = jnp.cumsum(kept_in_order & is_new[order]) - 1
  turns = scattered(order, turns)[num_places:]
  return jnp.where(
    kept[num_places:], free.at[turns].get(mode="clip").astype(jnp.int32),
    num_places + jnp.arange(num_new))


def _worths(descriptors: Array, takes_part: Array, num_neighbors: int) -> Array:
  """Returns what individuals are worth, equation 5 of the paper."""
  num = descriptors.shape[0]
  k = min(num_neighbors, num)
  counts = np.minimum(np.arange(num), k)
  # Multiplied, since XLA compiles a division differently on a single device.
  shares = (1 / np.maximum(counts, 1)).astype(np.float32)

  def of_row(inputs: tuple[Array, Array]) -> Array:
    point, place = inputs
    squares = jnp.zeros(num)
    for x, axis in zip(point, jnp.unstack(descriptors, axis=1), strict=True):
      squares += (axis - x) ** 2
    squares = jnp.where(jnp.arange(num) < place, squares, jnp.inf)
    nearest = jnp.sqrt(-jax.lax.top_k(-squares, k)[0])
    return jnp.where(jnp.arange(k) < place, nearest, 0)

  numbers = jnp.arange(num)
  nearest = jax.lax.map(of_row, (descriptors, numbers), batch_size=_ROWS)
  total = sum(jnp.unstack(nearest, axis=1), jnp.zeros(num))
  worth = jnp.where(numbers == 0, jnp.inf, total * shares)
  return jnp.where(takes_part, worth, -jnp.inf)
