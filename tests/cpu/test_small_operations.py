"""Small products and scatters are replaced, wherever they are."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import jaxpr_as_fun

from qdrl_haiku.cpu import batching, small_operations

_X = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)


def _check(function, *args):
  """The same numbers; returns what jax would compile, before and after."""
  before = jax.make_jaxpr(function)(*args)
  after = small_operations.rewrite_small_operations(before)
  np.testing.assert_allclose(
    jaxpr_as_fun(after)(*args)[0], function(*args), rtol=1e-5, atol=1e-6)
  return str(before), str(after)


@pytest.mark.parametrize(
  "equation", ["ij,ij->i", "ij,kj->ik", "ij,ij->", "ij,i->j", "ij,l->ijl"])
def test_a_small_product_becomes_a_multiplication_and_a_sum(equation):
  second = _X[:, 0] if equation[4] == "-" else _X
  before, after = _check(lambda x, y: jnp.einsum(equation, x, y), _X, second)
  assert "dot_general" in before
  assert "dot_general" not in after


@pytest.mark.parametrize("function", [
  jax.jit(lambda x: x @ x),
  lambda x: jax.lax.scan(lambda y, z: (x @ y, z @ y), x, x)[0],
  lambda x: jax.lax.while_loop(
    lambda y: y @ y < 100.0, lambda y: y + x @ y, x[0]),
  lambda x: jax.lax.cond(x[0] @ x[1] > 0, lambda y: y @ y, jnp.negative, x),
], ids=["jit", "scan", "while_loop", "cond"])
def test_products_within_control_flow_are_found(function):
  assert "dot_general" not in _check(function, np.abs(_X[:3]))[1]


@pytest.mark.parametrize("dtype", [bool, np.int8])
def test_a_product_is_of_the_type_of_its_factors(dtype):
  before = jax.make_jaxpr(jnp.matmul)(
    np.array([[1, 0, 1], [0, 0, 1]], dtype), np.array([1, 1, 1], dtype))
  after = small_operations.rewrite_small_operations(before)
  assert "dot_general" not in str(after)
  assert after.out_avals == before.out_avals


def test_a_product_of_two_types_is_of_the_type_of_its_result():
  signs = np.int32([[1, -1, 1]] * 4)

  def function(x, y):
    return jax.lax.dot_general(
      x, y, (((1,), (1,)), ((0,), (0,))), preferred_element_type=jnp.float32)

  assert "dot_general" not in _check(function, _X, signs)[1]


def test_a_half_precise_product_is_rounded_once():
  factors = np.float16([300, 300]), np.float16([300, -300])
  assert _check(jnp.dot, *factors) and jnp.dot(*factors) == 0


_SCATTERS = {
  "rows": ((np.int32([2, 0]),), "set"),
  "elements": ((np.int32([3, 3]), np.int32([0, 2])), "add"),
  "columns": ((slice(None), np.int32([2, 1])), "set"),
  "slice": ((slice(1, 3),), "add"),
  "one": ((1, 2), "set"),
  "wrapped": ((np.int32([-1, 0]),), "add"),
  "all": ((...,), "add"),
  "dropped": ((np.int32([7, -9, 0]),), "set")}


@pytest.mark.parametrize("name", _SCATTERS)
def test_a_small_scatter_becomes_a_loop(name):
  where, method = _SCATTERS[name]

  def function(x):
    x = jnp.asarray(x)
    part = x.at[where].get(mode="fill", fill_value=3.0)
    return getattr(x.at[where], method)(part + 1)

  before, after = _check(function, _X)
  assert "scatter" in before
  assert "scatter" not in after


def test_places_of_a_scatter_may_be_of_few_bits():
  table = np.linspace(0, 1, 300, dtype=np.float32)
  places = np.uint8([1, 100, 255])

  def function(table):
    return jax.grad(lambda x: jnp.sum(jnp.take(x, places) ** 2))(table)

  before = jax.make_jaxpr(function)(table)
  after = small_operations.rewrite_small_operations(before)
  assert "scatter" in str(before) and "scatter" not in str(after)
  expected = np.zeros(300)
  expected[places] = 2 * places.astype(float) / 299
  np.testing.assert_allclose(jaxpr_as_fun(after)(table)[0], expected, rtol=1e-6)


@pytest.mark.parametrize(("shape", "num_writes"), [((4, 3), 0), ((4, 0), 2)])
def test_a_scatter_may_write_nothing(shape, num_writes):
  rows = jax.lax.ScatterDimensionNumbers((1,), (0,), (0,))
  places, updates = np.zeros((num_writes, 1), np.int32), np.ones((
    num_writes, shape[1]), np.float32)
  _check(
    lambda x: jax.lax.scatter_add(x, places, updates, rows), np.ones(shape))


@pytest.mark.parametrize("dtype", [bool, np.int8, np.float32])
def test_a_scatter_may_write_a_literal(dtype):
  _, after = _check(
    lambda x: jnp.asarray(x).at[1].set(dtype(True)), np.zeros(3, dtype))
  assert "scatter" not in after


@pytest.mark.parametrize(("function", "name"), [
  (lambda x: jnp.tile(x, (3, 3)) @ jnp.ones((9, 8)), "dot_general"),
  (lambda x: x.at[np.int32([7])].add(1.0, mode="clip"), "scatter"),
  (lambda x: x.at[1].apply(jnp.exp), "scatter"),
], ids=["large", "clipped", "applied"])
def test_what_has_no_replacement_stays_what_it_is(function, name):
  assert name in _check(function, jnp.asarray(_X))[1]


@pytest.mark.parametrize("size,is_cut", [(8, False), (1000, True)])
def test_large_batches_of_decompositions_are_cut_and_keep_their_bits(
  size, is_cut
):
  """Uncut, as many at once as there are threads would wait for ever."""
  matrix, vectors = jnp.ones((6, 6)), jnp.ones((6, 2))

  def solve(matrix, vectors):
    return jax.scipy.linalg.solve(matrix, vectors, assume_a="pos")

  factors, vectors = (
    jax.random.normal(jax.random.key(i), (size, *x.shape))
    for i, x in enumerate((matrix, vectors)))
  matrices = factors @ factors.swapaxes(1, 2) + jnp.eye(6)
  few = batching.rewrite_for_batching(solve, matrix, vectors[0])
  loops = str(jax.make_jaxpr(few)(matrices, vectors)).count("scan[")
  assert loops == (2 if is_cut else 0)
  np.testing.assert_array_equal(
    few(matrices, vectors), jax.jit(jax.vmap(solve))(matrices, vectors))
