"""Describes episodes by functions of their state descriptors."""

from collections.abc import Callable

import jax.numpy as jnp

from qdrl_haiku import types

DescriptorFn = Callable[[types.Array, types.Array], types.Array]
"""(descriptors of the states after each step [T, D], mask bool [T] of the
steps that belong to the episode) -> the episode's descriptor [D]."""


def final_descriptor(
  descriptors: types.Array, mask: types.Array
) -> types.Array:
  """Returns the descriptor of the state in which the episode ended.

  Args:
    descriptors: [T, D], of the states after each step; steps outside of the
      mask may hold anything, NaN included.
    mask: bool [T], True for the steps of the episode, at least for one.

  Returns:
    [D].
  """
  last = mask.shape[0] - 1 - jnp.argmax(mask[::-1])
  return descriptors[last]


def mean_descriptor(
  descriptors: types.Array, mask: types.Array
) -> types.Array:
  """Returns the mean of the state descriptors over the steps of the episode.

  Args:
    descriptors: [T, D], as in `final_descriptor`.
    mask: bool [T], likewise.

  Returns:
    [D]; where a descriptor is 0 or 1, the share of steps in which it is 1.
  """
  return jnp.mean(descriptors, axis=0, where=mask[:, None])
