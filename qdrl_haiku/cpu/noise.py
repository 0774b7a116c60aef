"""Draws normal noise, quickly on CPUs."""

import math

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from qdrl_haiku import types
from qdrl_haiku.cpu import fusion, switch

# From this many numbers on, many kernels are faster, as they use threads.
_TOO_MUCH = 2**15


def normal_noise(
  key: types.Key, shape: tuple[int, ...], dtype: DTypeLike = jnp.float32
) -> types.Array:
  """Returns independent standard normal numbers, quickly on a CPU too.

  Up to rounding they are those of `jax.random.normal`, whose arguments `key`,
  `shape` and `dtype` are. That takes 65 microseconds for [256, 6]: a loop over
  the last axis is too short for vector instructions, and each of the 20 rounds
  of the generator (threefry) is a kernel. Drawing one vector as one kernel
  takes 14.
  """
  size = math.prod(shape)

  def draw(key: types.Key) -> list[types.Array]:
    return [jax.random.normal(key, (size,), dtype)]

  if switch.is_switched_to_plain():
    return jax.random.normal(key, shape, dtype)
  if 0 < size < _TOO_MUCH:
    draw = fusion.fuse_into_one_kernel(draw)
  return draw(key)[0].reshape(shape)
