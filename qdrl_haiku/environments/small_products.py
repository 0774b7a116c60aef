"""Physics without calls of a matrix library for products of a few numbers.

Robots turn vectors of three numbers thousands of times per step. On a CPU XLA
calls a library for each product of a batch and merges nothing with it; a
multiplication and a sum become part of the loop around them. This makes steps
of brax's robots 10 to 30 % faster.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend import core as jax_core

# Multiplications up to which that pays; products of 8 x 8 matrices are slower.
_MOST = 64


def elementwise(
  function: Callable[..., Any], *specs: Any
) -> Callable[..., Any]:
  """Traces a function, and takes its small products element by element.

  Args:
    function: of trees of arrays, of one instance.
    *specs: shapes and dtypes of its arguments.

  Returns:
    The function, but for rounding. Its Python isn't called again: jax traces a
    function anew under each mesh, and to trace a robot takes a second.
  """
  jaxpr, result = jax.make_jaxpr(function, return_shape=True)(*specs)
  if _has_small_products(jaxpr.jaxpr):
    jaxpr = _rewritten(jaxpr)
  treedef = jax.tree.structure(result)
  call = jax_core.jaxpr_as_fun(jaxpr)
  return lambda *args: jax.tree.unflatten(treedef, call(*jax.tree.leaves(args)))


def _rewritten(jaxpr: Any) -> Any:
  """A closed jaxpr of the same types without small products."""
  shapes = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in jaxpr.in_avals]
  return jax.make_jaxpr(lambda *args: _evaluate(jaxpr, args))(*shapes)


def _evaluate(jaxpr: Any, args: Sequence[Any]) -> list[Any]:
  """Calls the operations of a closed jaxpr, and others for small products."""
  values = dict(zip(jaxpr.jaxpr.constvars, jaxpr.consts, strict=True))
  values.update(zip(jaxpr.jaxpr.invars, args, strict=True))

  def read(variable: Any) -> Any:
    if isinstance(variable, jax_core.Literal):
      return variable.val
    return values[variable]

  for equation in jaxpr.jaxpr.eqns:
    operands = [read(x) for x in equation.invars]
    results = _apply(equation, operands)
    values.update(zip(equation.outvars, results, strict=True))
  return [read(x) for x in jaxpr.jaxpr.outvars]


def _apply(equation: Any, operands: Sequence[Any]) -> Sequence[Any]:
  """The results of one operation."""
  name, params = equation.primitive.name, equation.params
  if _is_small_product(equation):
    lhs, rhs = operands
    return [_multiply_and_sum(lhs, rhs, params["dimension_numbers"])]
  if any(_has_small_products(x.jaxpr) for x in _inner(equation)):
    if name == "jit":
      return _evaluate(params["jaxpr"], operands)
    # What defines its own derivatives stays as it is.
    if name in ("scan", "while", "cond"):
      params = jax.tree.map(_rewrite, params, is_leaf=_is_closed)
  primitive = equation.primitive
  results = primitive.bind(*operands, **primitive.get_bind_params(params))
  return results if primitive.multiple_results else [results]


def _multiply_and_sum(
  lhs: Any, rhs: Any, dimension_numbers: Any
) -> jax.Array:
  """What `lax.dot_general` computes."""
  (lhs_summed, rhs_summed), (lhs_batch, rhs_batch) = dimension_numbers
  lhs_free = [
    i for i in range(lhs.ndim) if i not in (*lhs_summed, *lhs_batch)
  ]
  rhs_free = [
    i for i in range(rhs.ndim) if i not in (*rhs_summed, *rhs_batch)
  ]
  lhs = lax.transpose(lhs, (*lhs_batch, *lhs_free, *lhs_summed))
  rhs = lax.transpose(rhs, (*rhs_batch, *rhs_free, *rhs_summed))
  first = len(lhs_batch)
  middle = first + len(lhs_free)
  last = middle + len(rhs_free)
  lhs = jnp.expand_dims(lhs, range(middle, last))
  rhs = jnp.expand_dims(rhs, range(first, middle))
  return jnp.sum(lhs * rhs, axis=range(last, lhs.ndim))


def _is_small_product(equation: Any) -> bool:
  if equation.primitive.name != "dot_general":
    return False
  result = equation.outvars[0].aval
  lhs, rhs = (x.aval for x in equation.invars)
  summed = equation.params["dimension_numbers"][0][0]
  count = result.size * math.prod(lhs.shape[i] for i in summed)
  return count <= _MOST and lhs.dtype == rhs.dtype == result.dtype


def _has_small_products(jaxpr: Any) -> bool:
  return any(
    _is_small_product(equation)
    or any(_has_small_products(x.jaxpr) for x in _inner(equation))
    for equation in jaxpr.eqns
  )


def _inner(equation: Any) -> list[Any]:
  """The closed jaxprs among the parameters of an operation."""
  leaves = jax.tree.leaves(equation.params, is_leaf=_is_closed)
  return [x for x in leaves if _is_closed(x)]


def _rewrite(x: Any) -> Any:
  return _rewritten(x) if _is_closed(x) else x


def _is_closed(x: Any) -> bool:
  return isinstance(x, jax_core.ClosedJaxpr)
