"""Dominated novelty search: a repertoire without cells.

Bahlous-Boldi et al. (2025), "Dominated novelty search: rethinking local
competition in quality-diversity", arXiv:2502.00593. An individual's score is
its mean distance to the k nearest fitter individuals, infinite for the fittest.
The C individuals with the highest scores stay.

Ties, which the paper leaves open, never depend on the order of a batch. Of
individuals with the same descriptor only the fittest takes part. Of equally fit
ones an incumbent counts as fitter than a newcomer, then the one with the least
descriptor. Of two with the same score the fitter is preferred.
"""

from collections.abc import Sequence
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from qdrl_haiku.map_elites import storage
from qdrl_haiku.map_elites.repertoire import Repertoire
from qdrl_haiku.types import Array

# Rows of distances at once.
_ROWS = 128


class DominatedNovelty(Repertoire):
  """C places, each with an individual that is fit or far from fitter ones.

  Made by `Repertoire.init(genotype, Unstructured(...))`. No two have the same
  descriptor, and those that stay keep their place.
  """

  has_cells: ClassVar[bool] = False

  @property
  def bounds(self) -> tuple[np.ndarray, np.ndarray]:
    """The grid's bounds, or those of the elites with a margin; outside jit."""
    if grid := self.tessellation.grid:
      return np.array(grid.lower), np.array(grid.upper)
    elites = np.asarray(self.descriptors, np.float64)
    return storage.stored_repertoire_extent(elites[np.asarray(self.occupied)])

  @property
  def centroids(self) -> Array:
    """The descriptors, [C, D]; zeros where a place is empty."""
    return self.descriptors

  def in_cells(self) -> Repertoire:
    """Returns the best of each cell of the grid; itself where there is none."""
    grid = self.tessellation.grid
    if not grid:
      return self
    places = jnp.arange(self.fitness.shape[0])
    return Repertoire.init(places[0], grid).add(
      places, self.fitness, self.descriptors)

  def places(
    self, valid: Array, fitness: Array, descriptors: Array,
    hashes: Sequence[Array],
  ) -> Array:
    """Decides where individuals are written; see `Repertoire.places`."""
    num_places, num_new = self.fitness.shape[0], fitness.shape[0]
    numbers = jnp.arange(num_places + num_new)
    is_new = numbers >= num_places
    new_fitness = jnp.where(valid, fitness, -jnp.inf)
    new_points = jnp.where(valid[:, None], descriptors, 0)
    all_fitness = jnp.concatenate([self.fitness, new_fitness])
    points = jnp.concatenate([self.descriptors, new_points])
    more = [jnp.pad(x, (num_places, 0)) for x in hashes]
    # The first of each descriptor takes part.
    absent = all_fitness == -jnp.inf
    axes = jnp.unstack(points, axis=1)
    keys = (absent, *axes, -all_fitness, is_new, *more, numbers)
    sorted_keys = jax.lax.sort(keys, num_keys=len(keys))
    is_first = jnp.zeros(numbers.shape, bool)
    for x in sorted_keys[: 1 + len(axes)]:
      is_first |= jnp.concatenate([jnp.ones(1, bool), x[1:] != x[:-1]])
    takes_part = _scattered(sorted_keys[-1], is_first & ~sorted_keys[0])
    # From the fittest on.
    keys = (~takes_part, -all_fitness, is_new, *axes, numbers)
    *_, order = jax.lax.sort(keys, num_keys=len(keys))
    worth = _worths(
      points[order], takes_part[order], self.tessellation.num_neighbors)
    by_worth = jnp.argsort(-worth, stable=True)
    kept_in_order = _scattered(by_worth, numbers < num_places)
    kept_in_order &= takes_part[order]
    kept = _scattered(order, kept_in_order)
    # The first newcomers get the places of those that leave.
    stays = kept[:num_places]
    free = jnp.argsort(
      jnp.where(stays, 2, jnp.where(self.occupied, 0, 1)), stable=True)
    turns = jnp.cumsum(kept_in_order & is_new[order]) - 1
    turns = _scattered(order, turns)[num_places:]
    return jnp.where(
      kept[num_places:], free.at[turns].get(mode="clip").astype(jnp.int32),
      num_places + jnp.arange(num_new))

  def cells_of(self, descriptors: Array) -> Array:
    """Returns the place of the elite that has each descriptor."""
    same = self.occupied & jnp.all(
      descriptors[:, None] == self.descriptors, axis=2)
    return jnp.argmax(same, axis=1).astype(jnp.int32)


def _scattered(order: Array, values: Array) -> Array:
  """Returns values [N] in the places that a permutation [N] gives them."""
  return jnp.zeros_like(values).at[order].set(values, unique_indices=True)


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
