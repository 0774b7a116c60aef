"""Normal noise is jax's, as one kernel on CPUs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qdrl_haiku.cpu import noise
from tests import kernels

_KEY = jax.random.key(7)


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
  assert (drawn.shape, drawn.dtype) == (shape, jnp.float32)
  expected = jax.random.normal(key, shape)
  np.testing.assert_allclose(drawn, expected, rtol=1e-5, atol=1e-6)


def test_keys_of_many_may_be_mapped_over():
  keys = jax.random.split(_KEY, 3)
  drawn = jax.jit(jax.vmap(lambda key: noise.normal(key, (4, 2))))(keys)
  expected = jax.vmap(lambda key: jax.random.normal(key, (4, 2)))(keys)
  np.testing.assert_allclose(drawn, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="of CPUs")
@pytest.mark.parametrize(
  ("shape", "number"), [((256, 6), 1), ((300, 200), 0)]
)
def test_a_batch_is_one_kernel_and_threads_share_more(shape, number):
  draw = jax.jit(lambda key: noise.normal(key, shape))
  assert kernels.num_marked(draw.lower(_KEY).compile()) == number
