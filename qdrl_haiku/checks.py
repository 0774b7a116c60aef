"""Checks of settings and trees; messages name what is wrong, and the fix."""

import inspect
import math
import numbers
from typing import TypeGuard

from qdrl_haiku import trees
from qdrl_haiku.types import Hyperparams

LARGEST = 2**31 - 1
"""Largest int32, with which jax counts and indexes."""
SMALLEST_FLOAT, LARGEST_FLOAT = 1e-30, 1e30
"""Magnitudes between which float32 neither overflows nor becomes subnormal,
which XLA may flush to zero, when numbers are multiplied or divided."""


def check_count(
  name: str, value: object, minimum: int, maximum: int = LARGEST
) -> None:
  """Refuses a setting that is no integer from a minimum to a maximum."""
  if (
    isinstance(value, bool)
    or not isinstance(value, numbers.Integral)
    or not minimum <= int(value) <= maximum
  ):
    raise ValueError(
      f"{name}={value!r} is not a count; use an integer from {minimum} to "
      f"{maximum}.")


def fits_float32(value: float) -> bool:
  """Returns whether a number is 0 or float32 holds its magnitude well."""
  return value == 0 or SMALLEST_FLOAT <= abs(value) <= LARGEST_FLOAT


def takes_arguments(function: object, number: int) -> bool:
  """Returns whether something can be called with so many arguments."""
  try:
    inspect.signature(function).bind(*range(number))  # type: ignore[arg-type]
  except TypeError:
    return False
  except ValueError:  # Python doesn't know what a built-in function takes.
    pass
  return True


def check_hyperparams(hyperparams: Hyperparams, defaults: Hyperparams) -> None:
  """Refuses hyperparameters that lack some of a learner's own defaults."""
  given = trees.tree_leaf_names(hyperparams)
  names = trees.tree_leaf_names(defaults)
  missing = [name for name in names if name not in given]
  if missing:
    raise ValueError(
      f"hyperparams lack {', '.join(missing)}; give a tree like the learner's "
      "own, Learner.hyperparams.")


def is_finite_number(value: object) -> TypeGuard[float]:
  """Returns whether something that was parsed is a finite number."""
  return isinstance(value, int | float) and math.isfinite(value)
