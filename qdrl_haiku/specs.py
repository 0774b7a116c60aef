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
  """Describes an array of an observation."""

  shape: tuple[int, ...]  # Of one observation.
  # float32, or of integers, which are never normalised; see `as_vector`.
  dtype: Any = np.dtype(np.float32)
  # The least number in it, where that is known; `upper`, the largest.
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
"""What is done: [A] in [-1, 1], or int32 [], one of n."""
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
      f"actions are one of {spec.size}, and here they are continuous; take "
      "learner=ppo, dqn, pqn or sac, or your own that makes int32 [...].")
  return spec.size


def discrete_spec(given: int | Action) -> Discrete:
  """Returns the spec of discrete actions; refuses continuous ones."""
  spec = action_spec(given)
  if isinstance(spec, Continuous):
    raise ValueError(
      f"actions are {spec.size} numbers, and here they are one of n; take "
      "learner=sac, td3 or ppo.")
  return spec


def observation_size(given: int | Observation) -> int:
  """Returns O: how many numbers all arrays have, as `as_vector` joins them."""
  return sum(
    math.prod(x.shape) for x in jax.tree.leaves(observation_spec(given)))


def number_if_flat(spec: Observation | Action) -> Any:
  """Returns the number that stands for a spec, or the spec if none does."""
  if isinstance(spec, Continuous):
    return spec.size
  return spec.shape[0] if is_flat(spec) else spec


def is_flat(spec: Observation | Action) -> bool:
  """Returns whether a spec is of one flat vector of floats."""
  return isinstance(spec, Array) and len(spec.shape) == 1 and is_float(spec)


def seen_by_policy(observation: types.Tree) -> types.Tree:
  """Returns an observation, or a spec, without what critics alone see."""
  if not isinstance(observation, Mapping):
    return observation
  seen = (x for x in observation if not x.startswith(PRIVILEGED))
  return {name: observation[name] for name in seen}


def as_vector(observation: types.Tree, spec: Observation) -> types.Array:
  """Joins the arrays [..., *shape] of a tree, such as a dict by its names.

  Returns:
    float32 [..., O]: each array flattened, bytes (uint8) as pixels, divided by
    255, other integers as they are.
  """

  def flat(x: types.Array, spec: Array) -> types.Array:
    if not is_float(x):
      x = x.astype(jnp.float32) / (255 if x.dtype == jnp.uint8 else 1)
    if len(spec.shape) == 1:
      return x
    leading = x.shape[: x.ndim - len(spec.shape)]
    return x.reshape(*leading, math.prod(spec.shape))

  pairs = zip(*map(jax.tree.leaves, (observation, spec)), strict=True)
  leaves = [flat(*pair) for pair in pairs]
  return leaves[0] if len(leaves) == 1 else jnp.concatenate(leaves, axis=-1)


@dataclasses.dataclass(frozen=True)
class Extended:
  """Puts a vector, such as a skill, beside what is observed.

  A flat vector of floats ends with it, a dict gets it as one more entry, and
  any other observation is in a dict with it, as `observed`.
  """

  base: Observation  # The spec of observations without the vector.
  name: str  # Of the entry.
  size: int  # K, of the vector.

  def __post_init__(self) -> None:
    if isinstance(self.base, Mapping) and self.name in self.base:
      raise ValueError(
        f"observations already have an entry {self.name!r}; rename it.")

  @property
  def spec(self) -> Observation:
    """The spec of observations with the vector."""
    if is_flat(self.base):
      return Array((self.base.shape[0] + self.size,))
    return self.join(self.base, Array((self.size,)))

  @property
  def start(self) -> int:
    """Where the vector begins in what `as_vector` makes of observations."""
    if is_flat(self.base):
      return self.base.shape[0]
    leaves = trees.named_tree_leaves(self.spec)
    return sum(math.prod(x.shape) for name, x in leaves if name < self.name)

  def join(self, observation: types.Tree, vector: types.Tree) -> types.Tree:
    """Returns observations with vectors [..., K]."""
    if is_flat(self.base):
      return jnp.concatenate([observation, vector], axis=-1)
    is_dict = isinstance(self.base, Mapping)
    return {
      **(observation if is_dict else {"observed": observation}),
      self.name: vector}

  def split(self, observation: types.Tree) -> tuple[types.Tree, types.Tree]:
    """Returns what `join` has put together."""
    if is_flat(self.base):
      size = self.base.shape[0]
      return observation[..., :size], observation[..., size:]
    rest = dict(observation)
    vector = rest.pop(self.name)
    is_dict = isinstance(self.base, Mapping)
    return rest if is_dict else rest["observed"], vector


def is_image(spec: Array) -> bool:
  """Returns whether an array is an image [height, width, channels]."""
  return len(spec.shape) == 3


def has_images(spec: Observation) -> bool:
  """Returns whether there is an image among what is observed."""
  return any(map(is_image, jax.tree.leaves(spec)))


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
