"""Convolutions by which networks see images, before a perceptron.

Those of images with sides of 36 and more are DQN's (Mnih et al., "Human-level
control through deep reinforcement learning", 2015); that of smaller ones is
MinAtar's (Young and Tian, arXiv 1903.03176).
"""

from collections.abc import Callable

import haiku as hk
import jax
import jax.numpy as jnp

from qdrl_haiku import specs, types

# (channels, size of the window, stride, which divides it) of each.
_SMALL_LAYERS = ((16, 3, 1),)
_LARGE_LAYERS = ((32, 8, 4), (64, 4, 2), (64, 3, 1))
# The least sides of which these leave anything.
_SMALL, _LARGE = 3, 36


def check_images(spec: specs.Observation) -> None:
  """Refuses observations without an image that convolutions can see."""
  shapes = [x.shape for x in jax.tree.leaves(spec)]
  images = [x for x in shapes if len(x) == 3]
  # Frames in front of rows and columns would be taken for rows.
  if not images or any(
    min(h, w) < _SMALL or h < w == depth for h, w, depth in images
  ):
    raise ValueError(
      f"network=conv sees images [height, width, channels] with sides from "
      f"{_SMALL} on, and observations are {', '.join(map(str, shapes))}; take "
      "network=mlp, or observe such images.")


def see(
  observation: types.Tree, spec: specs.Observation, *,
  activation: Callable[[jax.Array], jax.Array],
  init: hk.initializers.Initializer | None,
) -> jax.Array:
  """Joins what is seen of images with the other arrays, to [..., N].

  `observation` is a tree of arrays [..., *shape] of `spec`; convolutions have
  `activation` and weights drawn by `init`.
  """
  seen = []
  for x, of in zip(*map(jax.tree.leaves, (observation, spec)), strict=True):
    vector = specs.as_vector(x, of)
    if specs.is_image(of):
      layers = _LARGE_LAYERS if min(of.shape[:2]) >= _LARGE else _SMALL_LAYERS
      x = vector.reshape(x.shape)
      for i, (channels, size, stride) in enumerate(layers):
        linear = hk.Linear(channels, w_init=init, name=f"convolution_{i}")
        x = activation(linear(_windows(x, size, stride)))
      vector = x.reshape(*x.shape[:-3], -1)
    seen.append(vector)
  return jnp.concatenate(seen, axis=-1)


def _windows(x: jax.Array, size: int, stride: int) -> jax.Array:
  """Returns what each place of a convolution sees of [..., H, W, C], flat.

  A convolution is a product with that. XLA's own, with weights of each member
  or of twins, is one convolution of groups, many times as slow on CPUs.
  """
  *leading, height, width, depth = x.shape
  rows, columns = ((n - size) // stride + 1 for n in (height, width))
  # As if blocks of the stride's size were pixels: that takes few slices.
  reach = size // stride
  blocks = (rows + reach - 1, stride, columns + reach - 1, stride)
  x = x[..., : blocks[0] * stride, : blocks[2] * stride, :]
  x = jnp.moveaxis(x.reshape(*leading, *blocks, depth), -3, -4)
  x = x.reshape(*x.shape[:-3], stride * stride * depth)
  return jnp.concatenate([
    x[..., i : i + rows, j : j + columns, :]
    for i in range(reach) for j in range(reach)], axis=-1)
