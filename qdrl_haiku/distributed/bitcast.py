"""Converts arrays to integers, for devices to send them to each other.

They are sent by adding zeros, which can change a float's bits (-0.0 + 0.0).
"""

import jax
import jax.numpy as jnp

from qdrl_haiku.types import Array


def bitcast_to_integers(x: Array) -> Array:
  """Returns unsigned integers that hold an array's bits."""
  if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
    return jax.random.key_data(x)
  if x.dtype == bool:
    return x.astype(jnp.uint32)
  bits = jax.lax.bitcast_convert_type(
    x, jnp.dtype(f"uint{8 * x.dtype.itemsize}"))
  return bits if bits.dtype == jnp.uint64 else bits.astype(jnp.uint32)


def bitcast_from_integers(bits: Array, like: Array) -> Array:
  """Returns the reverse of `bitcast_to_integers`."""
  if jnp.issubdtype(like.dtype, jax.dtypes.prng_key):
    return jax.random.wrap_key_data(bits, impl=jax.random.key_impl(like))
  if like.dtype == bool:
    return bits.astype(bool)
  bits = bits.astype(jnp.dtype(f"uint{8 * like.dtype.itemsize}"))
  return jax.lax.bitcast_convert_type(bits, like.dtype)
