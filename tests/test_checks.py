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
