"""Individuals that may enter a container, and what breaks ties among them."""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp

from qdrl_haiku import checks
from qdrl_haiku.types import Array, Tree


class Candidates(NamedTuple):
  """Holds a batch as containers store it, leaves [B, ...]."""

  genotypes: Tree
  fitness: Array  # float32 [B], with one sign of zero.
  descriptors: Array  # float32 [B, D], with one sign of zero.
  extras: dict[str, Tree]  # What is kept beside them.
  valid: Array  # bool [B], whether all of an individual is finite.
  hashes: tuple[Array, Array]  # uint32 [B] each, of the genotypes.

  def best_first(self) -> Array:
    """Returns individuals' order: valid, fitter, of lesser descriptor first."""
    axes = jnp.unstack(self.descriptors, axis=1)
    return order_of_candidates(~self.valid, -self.fitness, *axes, *self.hashes)


def canonical_in_repertoire(x: Array) -> Array:
  """Returns float32 without negative zeros: equal numbers get equal bits."""
  x = x.astype(jnp.float32)
  return jnp.where(x == 0, 0, x)


def count_outside(before: Array, outside: Array) -> Array:
  """Adds how many of `outside` are true to a count, up to 2^31 - 1."""
  more = jnp.sum(outside, dtype=jnp.int32)
  return jnp.minimum(before, checks.LARGEST - more) + more


def order_of_candidates(*keys: Array) -> Array:
  """Returns the indices, int32 [N], that sort by several keys [N] in turn."""
  numbers = jnp.arange(keys[0].size, dtype=jnp.int32)
  return jax.lax.sort((*keys, numbers), num_keys=1 + len(keys))[-1]


def scatter_candidates(order: Array, values: Array) -> Array:
  """Returns values [N] in the places that a permutation [N] gives them."""
  return jnp.zeros_like(values).at[order].set(values, unique_indices=True)


def hash_for_repertoire(leaves: Sequence[Array]) -> tuple[Array, Array]:
  """Returns two 32-bit hashes of each individual of a batch, uint32 [B]."""
  first = second = jnp.zeros(leaves[0].shape[0], jnp.uint32)
  start = 0
  for leaf in leaves:
    words = _words(leaf.reshape(leaf.shape[0], -1))
    positions = start + jnp.arange(words.shape[1], dtype=jnp.uint32)
    start += words.shape[1]
    first += jnp.sum(_mix(words ^ _mix(2 * positions)), 1, jnp.uint32)
    second += jnp.sum(_mix(words ^ _mix(2 * positions + 1)), 1, jnp.uint32)
  return first, second


def _words(rows: Array) -> Array:
  """Returns the bits of [B, N] as uint32 [B, N], or [B, 2 N] of 64 bits."""
  if rows.dtype == bool:
    return rows.astype(jnp.uint32)
  bits = min(8 * rows.dtype.itemsize, 32)
  words = jax.lax.bitcast_convert_type(rows, jnp.dtype(f"uint{bits}"))
  return words.reshape(rows.shape[0], -1).astype(jnp.uint32)


def _mix(x: Array) -> Array:
  """MurmurHash3's finaliser: each bit of x changes half of the result's."""
  x = (x ^ (x >> 16)) * jnp.uint32(0x85EBCA6B)
  x = (x ^ (x >> 13)) * jnp.uint32(0xC2B2AE35)
  return x ^ (x >> 16)
