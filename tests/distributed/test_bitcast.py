"""Tests of the bits that devices send to each other."""

import jax
import jax.numpy as jnp
import pytest

from qdrl_haiku.distributed import bitcast
from tests.training import common

_NAN = jnp.uint32(0x7FC12345).view(jnp.float32)  # With a payload.


@pytest.mark.parametrize("x", [
  jnp.array([-0.0, 0.0, jnp.inf, _NAN]),
  jnp.array([1.5, -2.0], jnp.bfloat16),
  jnp.array([-1, 2**31 - 1], jnp.int32),
  jnp.array([[255], [0]], jnp.uint8),
  jnp.array([-128, 127], jnp.int8),
  jnp.array([True, False]),
  jax.random.split(jax.random.key(0), 3),
])  # fmt: skip
def test_they_come_back_as_they_were(x):
  sent = bitcast.to_integers(x)
  assert sent.dtype == jnp.uint32
  common.assert_bits_equal(bitcast.from_integers(sent, x), x)
