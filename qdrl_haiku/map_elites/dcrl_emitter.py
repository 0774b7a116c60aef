"""DCRL-MAP-Elites: a critic and a policy that are told what is asked for.

Faldor, Chalumeau, Flageat and Cully (2024), "Synergizing quality-diversity with
descriptor-conditioned reinforcement learning", arXiv:2401.08632.
"""

import jax.numpy as jnp

from qdrl_haiku.map_elites.emitters import Emitter
from qdrl_haiku.map_elites.teaching import Teacher, taught_emitter
from qdrl_haiku.map_elites.variation import VariationFn
from qdrl_haiku.types import Array


def dcrl_emitter(
  teacher: Teacher,
  variation_fn: VariationFn,
  *,
  gradient_batch_size: int,
  injection_batch_size: int,
  variation_batch_size: int,
) -> Emitter:
  """Improves parents where they are, injects policies for descriptors, varies.

  Args:
    teacher: whose critic and policy see targets, and whose rewards are
      weighted by `similarity`, see `Teacher`.
    variation_fn: makes offspring, see `VariationFn`.
    gradient_batch_size: G, parents that are improved, >= 0.
    injection_batch_size: I, policies for descriptors of elites, >= 0.
    variation_batch_size: V, variations, >= 0.

  Returns:
    The emitter, see `taught_emitter`.

  Raises:
    ValueError: if a batch size is not a count.
  """
  return taught_emitter(
    teacher,
    variation_fn,
    gradient_batch_size=gradient_batch_size,
    injection_batch_size=injection_batch_size,
    variation_batch_size=variation_batch_size,
  )


def similarity(
  descriptors: Array, targets: Array, length_scale: float | Array
) -> Array:
  """Weighs the rewards of an episode by how near it came to its target.

  exp(-|d - d'| / L), equation 4 of the paper.

  Args:
    descriptors: d, [..., D], in units of which the length scale is told.
    targets: d', [..., D].
    length_scale: L, [], > 0.

  Returns:
    [...], in [0, 1]: 1 where they are equal.
  """
  distance = jnp.linalg.norm(descriptors - targets, axis=-1)
  return jnp.exp(-distance / length_scale)
