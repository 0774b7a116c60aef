"""Checks of settings; messages name the setting, its value and the fix."""

import numbers
from typing import Any


def check_count(name: str, value: Any, minimum: int, hint: str = "") -> None:
  """Refuses a setting that is not a count.

  Args:
    name: of the setting.
    value: of the setting.
    minimum: the least that it may be.
    hint: what to use instead, if there is more to say than the minimum.

  Raises:
    ValueError: if it is not an integer of at least the minimum.
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
