"""Tests of checks of settings."""

import numpy as np
import pytest

from qdrl_haiku import checks


def test_what_is_no_count_is_refused_with_the_fix():
  for value in (1, np.int32(1), 2**31 - 1):
    checks.check_count("size", value, 1)
  for value in (0, True, 2.0, "3", None, 2**31):
    complaint = f"^size={value!r} is not a count; use"
    with pytest.raises(ValueError, match=complaint):
      checks.check_count("size", value, 1)


def test_refusals_are_raised_together_each_once():
  def refuse(*messages):
    with checks.Refusals() as refusals:
      for message in messages:
        with refusals.noted():
          raise ValueError(message)
    return "all is right"

  assert refuse() == "all is right"
  with pytest.raises(ValueError, match="^one$") as caught:
    refuse("one")
  assert not isinstance(caught.value, checks.Refusals)
  with (
    pytest.raises(ValueError, match="^one\ntwo\nthree$") as caught,
    checks.Refusals() as refusals,
  ):
    refusals.refuse("one")
    with refusals.noted():
      refuse("two", "one", "two")
    raise ValueError("three")  # What comes after isn't looked at.
  assert checks.refusals_of(caught.value) == ["one", "two", "three"]
  with pytest.raises(KeyError), checks.Refusals() as refusals:
    refusals.refuse("one")
    raise KeyError  # A fault of the program's, not of its user's.
