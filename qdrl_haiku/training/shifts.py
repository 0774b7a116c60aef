"""Shifts images at random, so that critics learn no single pixels by heart.

Kostrikov et al., "Image augmentation is all you need", arXiv 2004.13649: pad by
repeating the border, and crop at random; once for each observation, as DrQ-v2
does (Yarats et al., arXiv 2107.09645).
"""

import jax
import jax.numpy as jnp

from qdrl_haiku import specs
from qdrl_haiku.types import Array, Key, Transition, Tree


def shift_images(
  spec: specs.Observation, most: int, batch: Transition, key: Key
) -> Transition:
  """Shifts the images of transitions [...], all images of an observation alike.

  Args:
    spec: of observations.
    most: pixels, >= 0, up to which they move along both axes.
    batch: the transitions.
    key: consumed.
  """

  def shift(observation: Tree, key: Key) -> Tree:
    moves = jax.random.randint(
      key, (batch.reward.size, 2), -most, most + 1)

    def one(image: Array, move: Array) -> Array:
      # A place beyond the border is that of the border.
      rows, columns = (
        jnp.clip(jnp.arange(size) + move[i], 0, size - 1)
        for i, size in enumerate(image.shape[:2]))
      return image[rows[:, None], columns]

    return jax.tree.map(
      lambda x, of: jax.vmap(one)(x.reshape(-1, *of.shape), moves).reshape(
        x.shape) if specs.is_image(of) else x,
      observation, spec)

  first, last = jax.random.split(key)
  return batch._replace(
    observation=shift(batch.observation, first),
    next_observation=shift(batch.next_observation, last))
