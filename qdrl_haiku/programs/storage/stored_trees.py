"""Converts trees for orbax, which stores no typed keys and no empty arrays."""

from typing import Any

import jax
import jax.numpy as jnp

from qdrl_haiku.types import Array, Tree


def to_stored_tree(tree: Tree) -> Tree:
  """Returns a tree for orbax: keys as integers, empty arrays as None."""

  def convert(x: Any) -> Any:
    if not x.size or not _is_key(x):
      return x if x.size else None
    if isinstance(x, jax.Array):
      return jax.random.key_data(x)
    data = jax.eval_shape(jax.random.key_data, x)
    return jax.ShapeDtypeStruct(data.shape, data.dtype, sharding=x.sharding)

  return jax.tree.map(convert, tree)


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
