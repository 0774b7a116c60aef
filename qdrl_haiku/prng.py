"""Numbers that are folded into keys, for draws that belong to no member.

Members, offspring and instances draw from `fold_in(key, i)`, i counted from 0.
Other draws fold in one of the numbers below, at the other end of int32, which
i doesn't reach. Within a class no two numbers are equal.
"""

import jax
import jax.numpy as jnp

from qdrl_haiku.types import Array, Key


class OfGeneration:
  """Folded into a generation's key."""

  CONTROLLER = 2**31 - 1
  VARIATION = 2**31 - 4
  SAMPLES = 2**31 - 5
  ASK = 2**31 - 10
  EVALUATE = 2**31 - 11
  TELL = 2**31 - 12
  TRAIN = 2**31 - 13
  IMPROVE = 2**31 - 14
  PARENTS = 2**31 - 15
  TARGETS = 2**31 - 16
  REEVALUATE = 2**31 - 17
  RESAMPLE = 2**31 - 18
  DESCRIBE = 2**31 - 19


class OfMember:
  """Folded into a member's key, or an elite's."""

  # Initialises it again in the same generation.
  RESTART = 2**31 - 2
  # States in which its episodes begin, and the first ones' ages.
  POOL = 2**31 - 3
  AGES = 2**31 - 13
  # All hyperparameters of a first repertoire, by the first elite's key.
  HYPERPARAMS = 2**31 - 10


class OfInstance:
  """Folded into the key of an environment's instance."""

  SKILL = 2**31 - 1


def typed_key(key: Key) -> Key:
  """Returns a typed key; keys of the older kind, [..., 2], are wrapped."""
  if jax.dtypes.issubdtype(key.dtype, jax.dtypes.prng_key):
    return key
  return jax.random.wrap_key_data(key)


def fold_in_indices(key: Key, population_size: int) -> Key:
  """Returns a key for each of P members, [P], by its index alone."""
  indices = jnp.arange(population_size)
  return jax.vmap(jax.random.fold_in, (None, 0))(typed_key(key), indices)


def fold_in_each(keys: Key, data: int | Array) -> Key:
  """Folds one number into each of several keys [P]."""
  return jax.vmap(jax.random.fold_in, (0, None))(keys, data)
