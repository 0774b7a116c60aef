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


def test_what_is_no_size_in_float32_is_refused():
  for value in (1e-30, 1.0, 1e30):
    checks.check_float("rate", value, may_be_zero=False)
  checks.check_float("rate", 0.0, may_be_zero=True)
  for value in (0.0, 1e-40, -1.0, 1e300, np.nan):
    with pytest.raises(ValueError, match="^rate=.* must be finite and .*; use"):
      checks.check_float("rate", value, may_be_zero=False)
