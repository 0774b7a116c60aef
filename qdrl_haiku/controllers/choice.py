"""A range of a few values, between which nothing is tried."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from qdrl_haiku.controllers.ranges import check_number
from qdrl_haiku.types import Array, Key


@dataclasses.dataclass(frozen=True)
class Choice:
  """One of a few values; a perturbation takes a neighbour in their order.

  Where the values have an order, write them in it. The first has one neighbour,
  and so has the last. With few values a fresh draw may be the parent's own.

  Attributes:
    values: two or more, all different in float32.

  Raises:
    ValueError: if the values are no numbers, too few, or not different.
  """

  values: tuple[float, ...]

  def __post_init__(self) -> None:
    object.__setattr__(self, "values", tuple(self.values))
    for value in self.values:
      check_number(self, "value", value)
    if len(self.values) < 2:
      raise ValueError(
        f"{self} leaves no choice; give two values or more, or use Fixed."
      )
    if len(set(self._float32().tolist())) < len(self.values):
      raise ValueError(
        f"{self} has a value twice, as float32; give each of them once."
      )

  def _float32(self) -> np.ndarray:
    return np.asarray(self.values, np.float32)

  def index(self, value: Array) -> Array:
    """Returns which of the values is nearest.

    Args:
      value: [...].

    Returns:
      int32 [...].
    """
    distance = jnp.abs(jnp.asarray(value)[..., None] - self._float32())
    return jnp.argmin(distance, axis=-1).astype(jnp.int32)

  def at(self, index: Array) -> Array:
    """Returns the values at some indices, float32 [...].

    Args:
      index: int [...], each below the number of values.
    """
    return jnp.asarray(self._float32())[index]

  def sample(self, key: Key) -> Array:
    """Draws a value, each with equal chance; see `Range.sample`."""
    return self.at(jax.random.randint(key, (), 0, len(self.values)))

  def perturb(
    self, value: Array, up: Array, factors: tuple[float, float]
  ) -> Array:
    """Takes the next value or the one before; see `Range.perturb`."""
    del factors
    last = len(self.values) - 1
    moved = jnp.abs(self.index(value) + jnp.where(up, 1, -1))
    return self.at(last - jnp.abs(last - moved))

  def same(self, first: Array, second: Array) -> Array:
    """Compares which of the values they are; see `Range.same`."""
    return self.index(first) == self.index(second)
