"""Normal noise is jax's, as one kernel on CPUs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qdrl_haiku.cpu import noise
from tests import kernels


@pytest.mark.parametrize(("shape", "implementation", "kernel"), [
  ((), "threefry2x32", True),
  ((0, 3), "threefry2x32", False),
  ((256, 6), "threefry2x32", True),
  # Which threads share.
  ((300, 200), "threefry2x32", False),
  ((5,), "rbg", None),
])
def test_it_is_what_jax_draws(shape, implementation, kernel):
  key = jax.random.key(7, impl=implementation)
  compiled = (
    jax.jit(lambda key: noise.normal_noise(key, shape)).lower(key).compile()
  )
  if kernel is not None and jax.default_backend() == "cpu":
    assert kernels.num_marked(compiled) == kernel
  drawn = compiled(key)
  assert (drawn.shape, drawn.dtype) == (shape, jnp.float32)
  expected = jax.random.normal(key, shape)
  np.testing.assert_allclose(drawn, expected, rtol=1e-5, atol=1e-6)
