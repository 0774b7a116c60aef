"""Normal noise is jax's, as one kernel on CPUs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qdrl_haiku.cpu import noise
from tests import kernels

_KEY = jax.random.key(7)


def _num_marked(function, *args):
  return kernels.num_marked(jax.jit(function).lower(*args).compile())


@pytest.mark.parametrize(
  ("shape", "implementation"),
  [
    *((x, "threefry2x32") for x in ((), (0, 3), (5,), (256, 6), (300, 200))),
    ((5,), "rbg"),
    ((5,), "unsafe_rbg"),
  ],
)
def test_it_is_what_jax_draws(shape, implementation):
  key = jax.random.key(7, impl=implementation)
  drawn = noise.normal(key, shape)
  assert drawn.shape == shape
  assert drawn.dtype == jnp.float32
  expected = jax.random.normal(key, shape)
  np.testing.assert_allclose(drawn, expected, rtol=1e-5, atol=1e-6)


def test_keys_of_many_may_be_mapped_over():
  keys = jax.random.split(_KEY, 3)
  drawn = jax.jit(jax.vmap(lambda key: noise.normal(key, (4, 2))))(keys)
  expected = jax.vmap(lambda key: jax.random.normal(key, (4, 2)))(keys)
  np.testing.assert_allclose(drawn, expected, rtol=1e-5, atol=1e-6)


def test_what_is_drawn_may_be_scaled_and_differentiated():
  gradient = jax.grad(lambda s: jnp.sum(s * noise.normal(_KEY, (8,))))(2.0)
  expected = jnp.sum(jax.random.normal(_KEY, (8,)))
  np.testing.assert_allclose(gradient, expected, rtol=1e-5)


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="of CPUs")
def test_a_batch_is_one_kernel():
  assert _num_marked(lambda key: noise.normal(key, (256, 6)), _KEY) == 1


def test_very_much_is_many_kernels_which_threads_share():
  assert not _num_marked(lambda key: noise.normal(key, (300, 200)), _KEY)
