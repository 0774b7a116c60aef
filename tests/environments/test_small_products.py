"""Small products are taken element by element, wherever they are."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qdrl_haiku.environments import small_products

_X = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)


def _check(function, *args):
  """The same numbers; returns what jax would compile."""
  specs = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in args]
  changed = small_products.elementwise(function, *specs)
  np.testing.assert_allclose(
    changed(*args), function(*args), rtol=1e-5, atol=1e-6
  )
  return str(jax.make_jaxpr(changed)(*args))


@pytest.mark.parametrize(
  "equation", ["ij,ij->i", "ij,kj->ik", "ij,ik->jk", "ij,ij->", "ij,i->j"]
)
def test_a_small_product_becomes_a_multiplication_and_a_sum(equation):
  second = _X[:, 0] if equation == "ij,i->j" else _X

  def function(x, y):
    return jnp.einsum(equation, x, y)

  assert "dot_general" in str(jax.make_jaxpr(function)(_X, second))
  assert "dot_general" not in _check(function, _X, second)


def test_an_outer_product_sums_nothing():
  def function(x, y):
    return jax.lax.dot_general(x, y, (((), ()), ((), ())))

  assert "dot_general" not in _check(function, _X[0], _X[1])


@pytest.mark.parametrize(
  "function",
  [
    jax.jit(lambda x: x @ x),
    lambda x: jax.lax.fori_loop(0, 3, lambda _, y: x @ y, x),
    lambda x: jax.lax.scan(lambda y, z: (x @ y, z @ y), x, x)[0],
    lambda x: jax.lax.while_loop(
      lambda y: y @ y < 100.0, lambda y: y + x @ y, x[0]
    ),
    lambda x: jax.lax.cond(x[0] @ x[1] > 0, lambda y: y @ y, jnp.negative, x),
  ],
  ids=["jit", "fori_loop", "scan", "while_loop", "cond"],
)
def test_products_within_control_flow_are_found(function):
  assert "dot_general" not in _check(function, np.abs(_X[:3]))


def test_a_large_product_stays_what_it_is():
  x = np.ones((8, 8), np.float32)
  assert "dot_general" in _check(lambda x: x @ x, x)


def test_a_function_keeps_the_derivative_that_it_defines():
  @jax.custom_jvp
  def dot(x):
    return x @ x

  dot.defjvps(lambda tangent, _, x: 7 * tangent @ x)
  changed = small_products.elementwise(
    dot, jax.ShapeDtypeStruct((3,), jnp.float32)
  )
  np.testing.assert_allclose(jax.grad(changed)(_X[0]), 7 * _X[0], rtol=1e-6)


def test_python_is_called_once_whatever_the_batch():
  calls = []

  def function(x):
    calls.append(x)
    return x @ x

  changed = small_products.elementwise(
    function, jax.ShapeDtypeStruct((3,), jnp.float32)
  )
  for size in (1, 2, 4):
    result = jax.jit(jax.vmap(changed))(_X[:size])
    np.testing.assert_allclose(result, np.sum(_X[:size] ** 2, 1), rtol=1e-6)
  assert len(calls) == 1
