"""Converts trees for orbax, which stores no typed keys and no empty arrays."""

from typing import Any

import jax
import jax.numpy as jnp

from qdrl_haiku.types import Array, Tree


def to_stored_tree(tree: Tree) -> Tree:
  """Returns a tree as it is stored."""

  def convert(x: Array) -> Array | None:
    if not x.size:
      return None
    return jax.random.key_data(x) if _is_key(x) else x

  return jax.tree.map(convert, tree)


def stored_tree_leaf(x: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct | None:
  """Returns what orbax is to restore where an array is wanted."""
  if not x.size:
    return None
  if not _is_key(x):
    return x
  data = jax.eval_shape(jax.random.key_data, x)
  return jax.ShapeDtypeStruct(data.shape, data.dtype, sharding=x.sharding)


def from_stored_tree(tree: Tree, like: Tree) -> Tree:
  """Returns the reverse of `to_stored_tree`."""

  def convert(like: Array, x: Array) -> Array:
    if not like.size:
      return jnp.zeros(like.shape, like.dtype, device=like.sharding)
    if not _is_key(like):
      return x
    dtype: Any = like.dtype
    return jax.random.wrap_key_data(x, impl=dtype._impl)

  return jax.tree.map(convert, like, tree)


def _is_key(x: Array | jax.ShapeDtypeStruct) -> bool:
  return jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
