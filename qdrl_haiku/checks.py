"""Checks of settings; messages name the setting, its value and the fix."""

import numbers
from typing import Any

LARGEST = 2**31 - 1
"""What an int32 holds: jax counts and indexes with those."""
SMALLEST_FLOAT, LARGEST_FLOAT = 1e-30, 1e30
"""Magnitudes between which float32 neither overflows nor becomes subnormal,
which XLA may flush to zero, when numbers are multiplied or divided."""


def check_count(
  name: str,
  value: Any,
  minimum: int,
  hint: str = "",
  maximum: int = LARGEST,
) -> None:
  """Refuses a setting that is not a count.

  Args:
    name: of the setting.
    value: of the setting.
    minimum: the least that it may be.
    hint: what to use instead, if there is more to say than the minimum.
    maximum: the most that it may be.

  Raises:
    ValueError: if it is not an integer from the minimum to the maximum.
  """
  if (
    isinstance(value, bool)
    or not isinstance(value, numbers.Integral)
    or value < minimum
  ):
    raise ValueError(
      f"{name}={value!r} is not a count; use"
      f" {hint or f'an integer of at least {minimum}'}."
    )
  if int(value) > maximum:
    raise ValueError(
      f"{name}={value!r} is too large; use an integer of at most {maximum}."
    )


def fits_float32(value: float) -> bool:
  """Tells whether a number stays what it is in float32, but for rounding.

  Args:
    value: to be computed with.

  Returns:
    Whether it is 0, or of a magnitude that float32 holds well; False of NaN.
  """
  return value == 0 or SMALLEST_FLOAT <= abs(value) <= LARGEST_FLOAT


def check_float(name: str, value: float, *, may_be_zero: bool) -> None:
  """Refuses a setting that is no size in float32.

  Args:
    name: of the setting.
    value: of the setting.
    may_be_zero: whether it may be 0.

  Raises:
    ValueError: if it is negative or NaN, or if it would overflow or become 0.
  """
  if value < 0 or (value == 0 and not may_be_zero) or not fits_float32(value):
    least = "at least 0" if may_be_zero else "above 0"
    raise ValueError(
      f"{name}={value!r} must be finite and {least}, in float32 too; use "
      f"{'0 or ' if may_be_zero else ''}a number from {SMALLEST_FLOAT:g} to "
      f"{LARGEST_FLOAT:g}."
    )
