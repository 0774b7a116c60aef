"""The bits of arrays, which devices send to each other as integers.

Of floats, a sum with zero isn't always the same bits.
"""

import jax
import jax.numpy as jnp

from qdrl_haiku import types


def of(x: types.Array) -> types.Array:
  """Returns unsigned integers that hold an array's bits.

  Args:
    x: of numbers, flags or typed keys.

  Returns:
    uint32 of the same shape, or uint64 of what has 64 bits; of keys with one
    axis more. All alike, so that XLA sends them together.
  """
  if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
    return jax.random.key_data(x)
  if x.dtype == bool:
    return x.astype(jnp.uint32)
  bits = jax.lax.bitcast_convert_type(
    x, jnp.dtype(f"uint{8 * x.dtype.itemsize}")
  )
  return bits if bits.dtype == jnp.uint64 else bits.astype(jnp.uint32)


def back(bits: types.Array, like: types.Array) -> types.Array:
  """Returns the reverse of `of`.

  Args:
    bits: of `of`.
    like: an array of the wanted kind.

  Returns:
    The array.
  """
  if jnp.issubdtype(like.dtype, jax.dtypes.prng_key):
    return jax.random.wrap_key_data(bits, impl=jax.random.key_impl(like))
  if like.dtype == bool:
    return bits.astype(bool)
  bits = bits.astype(jnp.dtype(f"uint{8 * like.dtype.itemsize}"))
  return jax.lax.bitcast_convert_type(bits, like.dtype)
