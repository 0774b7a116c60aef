"""Small products and scatters are replaced, wherever they are."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import jaxpr_as_fun

from qdrl_haiku.cpu import small_operations

_X = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)


def _rewritten(function, *args):
  """The function without small operations."""
  jaxpr = small_operations.rewritten(jax.make_jaxpr(function)(*args))
  return lambda *args: jaxpr_as_fun(jaxpr)(*args)[0]


def _check(function, *args):
  """The same numbers; returns what jax would compile."""
  changed = _rewritten(function, *args)
  np.testing.assert_allclose(
    changed(*args), function(*args), rtol=1e-5, atol=1e-6
  )
  return str(jax.make_jaxpr(changed)(*args))


@pytest.mark.parametrize(
  "equation",
  ["ij,ij->i", "ij,kj->ik", "ij,ik->jk", "ij,ij->", "ij,i->j", "ij,l->ijl"],
)
def test_a_small_product_becomes_a_multiplication_and_a_sum(equation):
  second = _X[:, 0] if equation[4] == "-" else _X

  def function(x, y):
    return jnp.einsum(equation, x, y)

  assert "dot_general" in str(jax.make_jaxpr(function)(_X, second))
  assert "dot_general" not in _check(function, _X, second)


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
  changed = _rewritten(dot, _X[0])
  np.testing.assert_allclose(jax.grad(changed)(_X[0]), 7 * _X[0], rtol=1e-6)


def test_a_product_of_two_types_is_of_the_type_of_its_result():
  signs = np.int32([[1, -1, 1]] * 4)

  def function(x, y):
    return jax.lax.dot_general(
      x, y, (((1,), (1,)), ((0,), (0,))), preferred_element_type=jnp.float32
    )

  assert "dot_general" not in _check(function, _X, signs)


_SCATTERS = {
  "rows": ((np.int32([2, 0]),), "set"),
  "elements": ((np.int32([3, 3]), np.int32([0, 2])), "add"),
  "columns": ((slice(None), np.int32([2, 1])), "set"),
  "slice": ((slice(1, 3),), "add"),
  "one": ((1, 2), "set"),
  "wrapped": ((np.int32([-1, 0]),), "add"),
  "dropped": ((np.int32([7, 0]),), "set"),
}


@pytest.mark.parametrize("name", _SCATTERS)
def test_a_small_scatter_becomes_a_loop(name):
  where, method = _SCATTERS[name]

  def function(x):
    x = jnp.asarray(x)
    part = x.at[where].get(mode="fill", fill_value=3.0)
    return getattr(x.at[where], method)(part + 1)

  assert "scatter" in str(jax.make_jaxpr(function)(_X))
  assert "scatter" not in _check(function, _X)


def test_negative_segments_are_dropped():
  segments = np.int32([-1, 0, 2, 0])

  def function(x):
    return jax.ops.segment_sum(x, segments, 3)

  assert "scatter" not in _check(function, _X)
  changed = _rewritten(function, _X)(_X)
  np.testing.assert_allclose(changed[0], _X[1] + _X[3], rtol=1e-6)
  np.testing.assert_array_equal(changed[1:], [np.zeros(3), _X[2]])


def test_a_scatter_that_moves_what_is_outside_stays_what_it_is():
  def function(x):
    return jnp.asarray(x).at[np.int32([7])].add(1.0, mode="clip")

  assert "scatter" in _check(function, _X)
