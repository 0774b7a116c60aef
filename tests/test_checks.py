"""Tests of checks of settings."""

import numpy as np
import pytest

from qdrl_haiku import checks


@pytest.mark.parametrize(("value", "fix"), [
  *((x, "is not a count; use an integer of at least 1.")
    for x in (-1, 0, True, 2.0, "3", None, float("nan"))),
  # Beyond int32.
  *((x, "is too large; use an integer of at most 2147483647.")
    for x in (2**31, 10**20)),
])  # fmt: skip
def test_what_is_no_count_is_refused_with_the_fix(value, fix):
  with pytest.raises(ValueError) as caught:
    checks.check_count("size", value, 1)
  assert str(caught.value) == f"size={value!r} {fix}"


def test_a_hint_takes_the_place_of_the_minimum():
  with pytest.raises(ValueError, match="use at least 1, or none"):
    checks.check_count("size", 0, 1, "at least 1, or none")


@pytest.mark.parametrize("value", [1e-50, 1e-40, -1.0, 1e300, np.inf, np.nan])
@pytest.mark.parametrize("may_be_zero", [True, False])
def test_what_is_no_size_in_float32_is_refused(value, may_be_zero):
  with pytest.raises(ValueError, match="^rate=.* must be finite and .*; use"):
    checks.check_float("rate", value, may_be_zero=may_be_zero)


def test_counts_and_sizes_are_let_through():
  for value in (1, 7, np.int32(1), 2**31 - 1):
    checks.check_count("size", value, 1)
  for value in (1e-30, 1.0, 1e30):
    checks.check_float("rate", value, may_be_zero=False)


def test_zero_is_a_size_where_it_may_be():
  checks.check_float("rate", 0.0, may_be_zero=True)
  with pytest.raises(ValueError, match="above 0, in float32 too; use a number"):
    checks.check_float("rate", 0.0, may_be_zero=False)
