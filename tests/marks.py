"""Marks of tests that only some machines can run."""

import jax
import pytest

ON_CPU = pytest.mark.skipif(
  jax.default_backend() != "cpu", reason="what is only done on CPUs")
