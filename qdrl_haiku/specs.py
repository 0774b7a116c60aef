"""Describes what is observed and done: shapes, dtypes, bounds of arrays.

An observation is a tree of arrays, mostly one flat vector or a dict. Of a dict,
names that begin with "privileged" are of what critics alone see (asymmetric
actor-critic, Pinto et al., arXiv 1710.06542). Where a spec is asked for, a
number stands for a flat vector of floats, or for continuous actions.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from qdrl_haiku import checks, trees, types

PRIVILEGED = "privileged"
"""Begins the names of what critics alone see."""


@dataclasses.dataclass(frozen=True)
class Array:
  """Describes an array of an observation.

  Attributes:
    shape: of one observation.
    dtype: float32, or of integers, which stay as they are, never normalised.
    lower: the least number in it, where that is known; `upper`, the largest.
  """

  shape: tuple[int, ...]
  dtype: Any = np.dtype(np.float32)
  lower: float = -math.inf
  upper: float = math.inf

  def __post_init__(self) -> None:
    object.__setattr__(self, "dtype", np.dtype(self.dtype))


@dataclasses.dataclass(frozen=True)
class Continuous:
  """Describes actions of `size` numbers A, in [-1, 1]."""

  size: int
  dtype = np.dtype(np.float32)
  shape = property(lambda self: (self.size,))

  def sample(self, key: types.Key, *leading: int) -> types.Array:
    """Draws actions [..., A] uniformly; the key is consumed."""
    return jax.random.uniform(
      key, (*leading, self.size), self.dtype, -1.0, 1.0)


@dataclasses.dataclass(frozen=True)
class Discrete:
  """Describes an action that is one of `size`: int32, from 0."""

  size: int
  dtype = np.dtype(np.int32)
  shape: ClassVar[tuple[int, ...]] = ()

  def sample(self, key: types.Key, *leading: int) -> types.Array:
    """Draws actions [...] uniformly; the key is consumed."""
    return jax.random.randint(key, leading, 0, self.size, self.dtype)


Action = Continuous | Discrete
Observation = types.Tree
"""A tree of `Array`s."""


def observation_spec(given: int | Observation) -> Observation:
  """Returns the spec that is given, or that a number stands for."""
  if isinstance(given, Array | Mapping | tuple):
    return given
  checks.check_count("observation_size", given, 1)
  return Array((int(given),))


def action_spec(given: int | Action) -> Action:
  """Returns the spec that is given, or that a number stands for."""
  if isinstance(given, Action):
    return given
  checks.check_count("action_size", given, 1)
  return Continuous(int(given))


def action_size(given: int | Action) -> int:
  """Returns A, of continuous actions; refuses discrete ones."""
  spec = action_spec(given)
  if isinstance(spec, Discrete):
    raise ValueError(
      f"actions are one of {spec.size}, and this makes continuous ones; give a "
      "learner of your own that makes int32 [...].")
  return spec.size


def observation_size(
  given: int | Observation, *, is_one: bool = False
) -> int:
  """Returns O: how many floats all vectors have, or the one that there is.

  Raises:
    ValueError: if something is observed that is no flat vector of floats.
  """
  leaves = trees.named_tree_leaves(observation_spec(given))
  takes = "one flat vector" if is_one else "flat vectors"
  for name, x in leaves:
    if len(x.shape) != 1 or not is_float(x) or (is_one and name):
      raise ValueError(
        f"observations have {x.dtype}{list(x.shape)}{name and f' as {name}'}, "
        f"and this takes {takes} of floats alone; bring networks "
        "(networks.OwnNetworks) or a learner of your own.")
  return sum(x.shape[0] for _, x in leaves)


def number_if_flat(spec: Observation | Action) -> Any:
  """Returns the number that stands for a spec, or the spec if none does."""
  if isinstance(spec, Continuous):
    return spec.size
  is_flat = isinstance(spec, Array) and len(spec.shape) == 1 and is_float(spec)
  return spec.shape[0] if is_flat else spec


def seen_by_policy(observation: types.Tree) -> types.Tree:
  """Returns an observation, or a spec, without what critics alone see."""
  if not isinstance(observation, Mapping):
    return observation
  seen = (x for x in observation if not x.startswith(PRIVILEGED))
  return {name: observation[name] for name in seen}


def as_vector(observation: types.Tree) -> types.Array:
  """Joins the vectors [..., O_i] of a tree, such as a dict by its names."""
  leaves = jax.tree.leaves(observation)
  return leaves[0] if len(leaves) == 1 else jnp.concatenate(leaves, axis=-1)


def is_float(x: Any) -> bool:
  """Returns whether an array, or its spec, is of floats."""
  return jnp.issubdtype(x.dtype, jnp.floating)


def shapes(spec: types.Tree, *leading: int) -> types.Tree:
  """Returns shapes and dtypes of arrays with leading axes."""
  return jax.tree.map(
    lambda x: jax.ShapeDtypeStruct((*leading, *x.shape), x.dtype), spec)


def zeros(spec: types.Tree, *leading: int) -> types.Tree:
  """Returns arrays of zeros with leading axes."""
  return jax.tree.map(
    lambda x: jnp.zeros(x.shape, x.dtype), shapes(spec, *leading))
