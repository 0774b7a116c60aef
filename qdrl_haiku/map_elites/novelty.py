"""An archive of descriptors, and how far from it others are.

Of single states in QD-PG (Pierrot et al., 2022, arXiv:2006.08505), of agents in
ME-ES (Colas et al., 2020, arXiv:2003.01825).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from qdrl_haiku.types import Array

# Rows of distances at once.
_ROWS = 1024


class NoveltyArchive(NamedTuple):
  """Holds at most M descriptors; a new one takes the oldest's place."""

  points: Array  # float32 [M, D]; at first none.
  num_added: Array  # int32 [], so far.


def empty_archive(size: int, num_dimensions: int) -> NoveltyArchive:
  """Returns an archive of at most M = size descriptors, without any."""
  return NoveltyArchive(
    jnp.zeros((size, num_dimensions), jnp.float32), jnp.zeros((), jnp.int32))


def novelty(
  archive: NoveltyArchive, points: Array, k: int, power: int = 2
) -> Array:
  """Returns points' mean distances, or their squares, to the k nearest.

  Args:
    archive: of M descriptors; all count, if it holds fewer than k.
    points: [B, D].
    k: >= 1.
    power: of the distances, 1 or 2.

  Returns:
    [B]; 0 if the archive is empty.
  """
  k = min(k, archive.points.shape[0])
  num = jnp.minimum(archive.num_added, k)
  # Multiplied, since XLA compiles a division differently on a single device.
  share = 1 / jnp.maximum(num, 1).astype(jnp.float32)

  def of_point(point: Array) -> Array:
    nearest = -jax.lax.top_k(-_squares(archive, point), k)[0]
    nearest = jnp.where(jnp.arange(k) < num, nearest, 0)
    return share * jnp.sum(nearest if power == 2 else jnp.sqrt(nearest))

  return jax.lax.map(of_point, points, batch_size=_ROWS)


def add_novel(
  archive: NoveltyArchive, points: Array, valid: Array, threshold: float
) -> NoveltyArchive:
  """Adds descriptors that are far from all others, one after the other.

  Args:
    archive: of M descriptors.
    points: [B, D].
    valid: bool [B], which of them may be added.
    threshold: >= 0; a point is added if it's farther than this from all that
      the archive held before, and from those added earlier. At most M are.

  Returns:
    The archive.
  """
  size = archive.points.shape[0]

  def is_unfinished(carry: tuple[NoveltyArchive, Array]) -> Array:
    num_new = carry[0].num_added - archive.num_added
    return jnp.any(carry[1] > threshold**2) & (num_new < size)

  def add(
    carry: tuple[NoveltyArchive, Array]
  ) -> tuple[NoveltyArchive, Array]:
    (held, num_added), squares = carry
    point = points[jnp.argmax(squares > threshold**2)]  # The first of them.
    squares = jnp.minimum(squares, jnp.sum((points - point) ** 2, axis=1))
    held = held.at[num_added % size].set(point)
    return NoveltyArchive(held, num_added + 1), squares

  squares = jax.lax.map(
    lambda point: jnp.min(_squares(archive, point)), points, batch_size=_ROWS)
  squares = jnp.where(valid, squares, -jnp.inf)
  return jax.lax.while_loop(is_unfinished, add, (archive, squares))[0]


def _squares(archive: NoveltyArchive, point: Array) -> Array:
  """Returns squared distances [M] of a point; infinite where none is held."""
  held, num_added = archive
  squares = jnp.sum(jnp.square(held - point), axis=1)
  return jnp.where(jnp.arange(held.shape[0]) < num_added, squares, jnp.inf)
