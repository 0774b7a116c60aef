"""Tests of checks of settings."""

import numpy as np
import pytest

from qdrl_haiku import checks


@pytest.mark.parametrize("value", [-1, True, 2.0, "3", None, float("nan")])
def test_what_is_no_count_is_refused_with_the_fix(value):
  with pytest.raises(ValueError) as caught:
    checks.check_count("size", value, 1)
  assert str(caught.value) == (
    f"size={value!r} is not a count; use an integer of at least 1."
  )


@pytest.mark.parametrize("value", [1, 7, np.int32(1)])
def test_a_count_is_let_through(value):
  checks.check_count("size", value, 1)


def test_a_hint_takes_the_place_of_the_minimum():
  with pytest.raises(ValueError, match="use at least 1, or none"):
    checks.check_count("size", 0, 1, "at least 1, or none")
