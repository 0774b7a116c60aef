"""Dominated novelty search: who stays where there are no cells.

Bahlous-Boldi et al. (2025), "Dominated novelty search: rethinking local
competition in quality-diversity", arXiv:2502.00593. An individual is worth as
much as it is far from those that are fitter: the mean of the distances to the
k nearest of them, infinite for the fittest. The best C by that stay.

What the paper leaves open is settled so that order never matters. Of several
with the same descriptor only the fittest takes part. Of equally fit ones an
incumbent counts as fitter than a newcomer, then the one with the least
descriptor; so does the fitter of two that are worth the same.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from qdrl_haiku.types import Array

# Rows of distances at once.
_ROWS = 128


def places(
  fitness: Array,
  descriptors: Array,
  new_fitness: Array,
  new_descriptors: Array,
  hashes: Sequence[Array],
  num_neighbors: int,
) -> Array:
  """Finds where newcomers go, so that the best of all are kept."""
  num_places, num_new = fitness.shape[0], new_fitness.shape[0]
  numbers = jnp.arange(num_places + num_new)
  is_new = numbers >= num_places
  all_fitness = jnp.concatenate([fitness, new_fitness])
  points = jnp.concatenate([descriptors, new_descriptors])
  more = [
    jnp.concatenate([jnp.zeros(num_places, x.dtype), x]) for x in hashes
  ]
  # Those that nobody with the same descriptor comes before.
  absent = all_fitness == -jnp.inf
  axes = jnp.unstack(points, axis=1)
  keys = (absent, *axes, -all_fitness, is_new, *more, numbers)
  sorted_keys = jax.lax.sort(keys, num_keys=len(keys))
  is_first = jnp.zeros(numbers.shape, bool)
  for x in sorted_keys[: 1 + len(axes)]:
    is_first |= jnp.concatenate([jnp.ones(1, bool), x[1:] != x[:-1]])
  takes_part = jnp.zeros(numbers.shape, bool).at[sorted_keys[-1]].set(
    is_first & ~sorted_keys[0], unique_indices=True
  )
  # From the fittest on.
  keys = (~takes_part, -all_fitness, is_new, *axes, numbers)
  *_, order = jax.lax.sort(keys, num_keys=len(keys))
  worth = worths(points[order], takes_part[order], num_neighbors)
  by_worth = jnp.argsort(-worth, stable=True)
  kept_in_order = jnp.zeros(numbers.shape, bool).at[
    by_worth[:num_places]
  ].set(True, unique_indices=True)
  kept_in_order &= takes_part[order]
  kept = jnp.zeros(numbers.shape, bool).at[order].set(
    kept_in_order, unique_indices=True
  )
  # The first newcomers get the places of those that leave.
  occupied = fitness > -jnp.inf
  stays = kept[:num_places]
  free = jnp.argsort(
    jnp.where(stays, 2, jnp.where(occupied, 0, 1)), stable=True
  )
  turns = jnp.cumsum(kept_in_order & is_new[order]) - 1
  turns = jnp.zeros(numbers.shape, jnp.int32).at[order].set(
    turns.astype(jnp.int32), unique_indices=True
  )[num_places:]
  return jnp.where(
    kept[num_places:],
    free.at[turns].get(mode="clip").astype(jnp.int32),
    num_places + jnp.arange(num_new),
  )


def worths(
  descriptors: Array, takes_part: Array, num_neighbors: int
) -> Array:
  """Returns what individuals are worth, equation 5 of the paper."""
  num = descriptors.shape[0]
  k = min(num_neighbors, num)
  counts = np.minimum(np.arange(num), k)
  # Multiplied rather than divided, see `Grid.cell`.
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
