"""Converts trees for orbax, which stores no typed keys and no empty arrays."""

from typing import Any

import jax
import jax.numpy as jnp


def to_stored(tree: Any) -> Any:
  """Returns a tree as it is stored."""

  def convert(x: Any) -> Any:
    if not x.size:
      return None
    return jax.random.key_data(x) if _is_key(x) else x

  return jax.tree.map(convert, tree)


def as_stored(x: Any) -> Any:
  """Returns what orbax is to restore where an array is wanted."""
  if not x.size:
    return None
  if not _is_key(x):
    return x
  data = jax.eval_shape(jax.random.key_data, x)
  return jax.ShapeDtypeStruct(data.shape, data.dtype, sharding=x.sharding)


def from_stored(tree: Any, like: Any) -> Any:
  """Returns the reverse of `to_stored`."""

  def convert(like: Any, x: Any) -> Any:
    if not like.size:
      return jnp.zeros(like.shape, like.dtype, device=like.sharding)
    if not _is_key(like):
      return x
    found: list[Any] = []
    # Traced, since only arrays and tracers say it.
    jax.eval_shape(lambda key: found.append(jax.random.key_impl(key)), like)
    return jax.random.wrap_key_data(x, impl=found[0])

  return jax.tree.map(convert, like, tree)


def _is_key(x: Any) -> bool:
  return jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
