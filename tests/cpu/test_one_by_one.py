"""Tests of loops that take the place of batches."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qdrl_haiku.cpu import one_by_one


def _function(tree, scale):
  key, draw_key = jax.random.split(tree["key"])
  x = tree["x"] * scale + jax.random.normal(draw_key)
  return {"key": key, "x": x}, (x > 0, jnp.sum(x))


def _assert_equal(actual, expected):
  for x, y in zip(
    jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True
  ):
    if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
      x, y = jax.random.key_data(x), jax.random.key_data(y)
    assert x.dtype == y.dtype
    np.testing.assert_allclose(x, y, rtol=1e-6)


@pytest.mark.parametrize(("size", "scale_axis"), [(1, 0), (5, None)])
def test_a_loop_computes_what_a_batch_does(size, scale_axis):
  trees = {
    "key": jax.random.split(jax.random.key(0), size),
    "x": jnp.arange(3.0 * size).reshape(size, 3),
  }
  scale = jnp.float32(2.0) if scale_axis is None else jnp.arange(1.0, size + 1)
  axes = (0, scale_axis)
  looped = jax.jit(jax.vmap(one_by_one.one_by_one(_function), axes))
  compiled = looped.lower(trees, scale).compile()
  assert " while(" in compiled.as_text()  # Even for one.
  batched = jax.jit(jax.vmap(_function, axes))
  _assert_equal(compiled(trees, scale), batched(trees, scale))


def test_a_function_alone_computes_the_same():
  tree = {"key": jax.random.key(1), "x": jnp.arange(3.0)}
  expected = _function(tree, 2.0)
  _assert_equal(
    jax.jit(one_by_one.one_by_one_alone(_function))(tree, 2.0), expected
  )
