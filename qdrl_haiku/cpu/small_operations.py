"""Replaces small products and scatters, so that physics calls no libraries.

On a CPU XLA calls a library for each product of a batch and merges nothing with
it; a multiplication and a sum become part of the loop around them. This makes
steps of brax's robots, which turn vectors of three numbers, 10 to 30 % faster.
Scatters become loops, since they can't be part of a larger kernel (`batching`).

Decompositions are done a few at a time. jaxlib shares the matrices of a large
batch among XLA's threads and waits in one of them: as many decompositions at
once as there are threads wait for ever.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var

from qdrl_haiku.types import Array

# Multiplications up to which that pays; products of 8 x 8 matrices are slower.
_MOST_MULTIPLICATIONS = 64
# Writes up to which a scatter is replaced; with more, memory matters most.
_MOST_WRITES = 64
_DECOMPOSITIONS = frozenset(
  {"cholesky", "custom_linear_solve", "lu", "triangular_solve"})
# A batch of fewer than 200,000 multiplications is done by the thread itself.
_MOST_AT_ONCE = 50_000


def rewrite_small_operations(jaxpr: ClosedJaxpr) -> ClosedJaxpr:
  """Replaces small products by multiplications and sums, scatters by loops."""
  if not _has_any(jaxpr.jaxpr):
    return jaxpr
  shapes = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in jaxpr.in_avals]
  return jax.make_jaxpr(lambda *args: _evaluate(jaxpr, args))(*shapes)


def operation_jaxprs(equation: JaxprEqn) -> list[ClosedJaxpr]:
  """Returns the closed jaxprs among the parameters of an operation."""
  leaves = jax.tree.leaves(equation.params, is_leaf=_is_closed)
  return [x for x in leaves if _is_closed(x)]


def scatters(jaxpr: Jaxpr) -> bool:
  """Returns whether an operation writes in several places of an array."""
  return any(
    equation.primitive.name == "scatter"
    and math.prod(_spec(equation.invars[1]).shape[:-1]) > 1
    or any(scatters(x.jaxpr) for x in operation_jaxprs(equation))
    for equation in jaxpr.eqns)


def _evaluate(jaxpr: ClosedJaxpr, args: Iterable[Array]) -> list[Array]:
  """Calls the operations of a jaxpr, and others for the small ones."""
  values = dict(zip(jaxpr.jaxpr.constvars, jaxpr.consts, strict=True))
  values.update(zip(jaxpr.jaxpr.invars, args, strict=True))

  def read(variable: Literal | Var) -> Array:
    return (
      variable.val if isinstance(variable, Literal) else values[variable])

  for equation in jaxpr.jaxpr.eqns:
    results = _apply(equation, [read(x) for x in equation.invars])
    values.update(zip(equation.outvars, results, strict=True))
  return [read(x) for x in jaxpr.jaxpr.outvars]


def _apply(equation: JaxprEqn, operands: list[Array]) -> Sequence[Array]:
  """Returns the results of one operation."""
  primitive, params = equation.primitive, equation.params
  if _is_small_product(equation):
    dtype = _spec(equation.outvars[0]).dtype
    lhs, rhs = (lax.convert_element_type(x, dtype) for x in operands)
    return [_multiply_and_sum(lhs, rhs, params["dimension_numbers"])]
  if _is_small_scatter(equation):
    return [_scatter(equation, *operands)]
  if primitive.name in _DECOMPOSITIONS:
    return _few_at_once(equation)(*operands)
  if any(_has_any(x.jaxpr) for x in operation_jaxprs(equation)):
    if primitive.name == "jit":
      return _evaluate(params["jaxpr"], operands)
    # Functions with derivatives of their own stay as they are.
    if primitive.name in ("scan", "while", "cond"):
      params = jax.tree.map(
        lambda x: rewrite_small_operations(x) if _is_closed(x) else x, params,
        is_leaf=_is_closed)
  results = primitive.bind(*operands, **primitive.get_bind_params(params))
  return results if primitive.multiple_results else [results]


def _few_at_once(equation: JaxprEqn) -> Callable[..., list[Array]]:
  """Returns a decomposition of one matrix; it cuts batches into small ones."""
  primitive, params = equation.primitive, equation.params
  numbers = max(x.size for x in map(_spec, equation.invars))
  few = max(1, int(_MOST_AT_ONCE / max(numbers, 1) ** 1.5))

  def decompose(*operands: Array) -> list[Array]:
    results = primitive.bind(*operands, **primitive.get_bind_params(params))
    return results if primitive.multiple_results else [results]

  def of_batch(
    size: int, is_batched: Sequence[bool], *operands: Array
  ) -> tuple[list[Array], list[bool]]:
    batched = [x for x, b in zip(operands, is_batched, strict=True) if b]

    def of_one(batched: Sequence[Array]) -> list[Array]:
      turn = iter(batched)
      return decompose(*(
        next(turn) if b else x
        for x, b in zip(operands, is_batched, strict=True)))

    results = (
      jax.vmap(of_one)(batched) if size <= few
      else lax.map(of_one, batched, batch_size=few if few > 1 else None))
    return results, [True] * len(results)

  made = jax.custom_batching.custom_vmap(decompose)
  made.def_vmap(of_batch)
  return made


def _multiply_and_sum(lhs: Array, rhs: Array, dimension_numbers: Any) -> Array:
  """Returns what `lax.dot_general` computes."""
  (lhs_summed, rhs_summed), (lhs_batch, rhs_batch) = dimension_numbers

  def batch_first(
    x: Array, summed: Sequence[int], batch: Sequence[int]
  ) -> tuple[Array, int]:
    free = [i for i in range(x.ndim) if i not in (*summed, *batch)]
    return lax.transpose(x, (*batch, *free, *summed)), len(free)

  lhs, num_lhs_free = batch_first(lhs, lhs_summed, lhs_batch)
  rhs, num_rhs_free = batch_first(rhs, rhs_summed, rhs_batch)
  first = len(lhs_batch)
  middle = first + num_lhs_free
  last = middle + num_rhs_free
  lhs = jnp.expand_dims(lhs, range(middle, last))
  rhs = jnp.expand_dims(rhs, range(first, middle))
  # Sums of booleans and of short integers would be of a wider type.
  return jnp.sum(lhs * rhs, axis=range(last, lhs.ndim), dtype=lhs.dtype)


def _scatter(
  equation: JaxprEqn, operand: Array, indices: Array, updates: Array
) -> Array:
  """Returns what `lax.scatter` and `lax.scatter_add` do, one by one."""
  # A literal, such as the True of `x.at[0].set(True)`, is a Python number.
  operand, updates = jnp.asarray(operand), jnp.asarray(updates)
  numbers = equation.params["dimension_numbers"]
  adds = equation.primitive.name == "scatter-add"
  window_dims = numbers.update_window_dims
  others = [i for i in range(updates.ndim) if i not in window_dims]
  sizes = iter([updates.shape[i] for i in window_dims])
  window = [
    1 if i in numbers.inserted_window_dims else next(sizes)
    for i in range(operand.ndim)]
  updates = lax.transpose(updates, (*others, *window_dims))
  # Not -1: there are no indices where a window is as large as the operand.
  num_writes = math.prod(indices.shape[:-1])
  indices = jnp.reshape(indices, (num_writes, indices.shape[-1]))
  if indices.dtype.itemsize < 4:  # In which some limits have no place.
    indices = lax.convert_element_type(indices, jnp.int32)
  updates = jnp.reshape(updates, (num_writes, *window))
  # Where it could begin; beyond that nothing is changed.
  limits = [n - size for n, size in zip(operand.shape, window, strict=True)]

  def put(j: Array, result: Array) -> Array:
    begin = [jnp.zeros((), indices.dtype)] * operand.ndim
    is_inside = jnp.bool_(True)
    for k, axis in enumerate(numbers.scatter_dims_to_operand_dims):
      begin[axis] = indices[j, k]
      is_inside &= (begin[axis] >= 0) & (begin[axis] <= limits[axis])
    before = lax.dynamic_slice(result, begin, window)
    after = before + updates[j] if adds else updates[j]
    return lax.dynamic_update_slice(
      result, jnp.where(is_inside, after, before), begin)

  return lax.fori_loop(0, num_writes, put, operand)


def _is_small_product(equation: JaxprEqn) -> bool:
  """Returns whether products of a batch have few multiplications each."""
  if equation.primitive.name != "dot_general":
    return False
  lhs, result = _spec(equation.invars[0]), _spec(equation.outvars[0])
  if result.dtype in (jnp.float16, jnp.bfloat16):
    return False  # Whose products XLA sums before it rounds them.
  (summed, _), (batch, _) = equation.params["dimension_numbers"]
  count = result.size * math.prod(lhs.shape[i] for i in summed)
  num_products = math.prod(lhs.shape[i] for i in batch)
  return count <= _MOST_MULTIPLICATIONS * num_products


def _is_small_scatter(equation: JaxprEqn) -> bool:
  """Returns whether a scatter writes a few times, and clips nothing."""
  # With a function of its own, a "scatter" is what `x.at[i].apply` makes.
  writes = equation.primitive.name == "scatter" and (
    equation.params["update_jaxpr"] is None)
  if not writes and equation.primitive.name != "scatter-add":
    return False
  indices, updates = map(_spec, equation.invars[1:])
  return (
    math.prod(indices.shape[:-1]) <= _MOST_WRITES
    and updates.size > 0  # Without any, the array stays what it is.
    and not equation.params["dimension_numbers"].operand_batching_dims
    and equation.params["mode"] != lax.GatherScatterMode.CLIP)


def _has_any(jaxpr: Jaxpr) -> bool:
  """Returns whether a jaxpr, or one within it, has what is replaced."""
  return any(
    equation.primitive.name in _DECOMPOSITIONS
    or _is_small_product(equation)
    or _is_small_scatter(equation)
    or any(_has_any(x.jaxpr) for x in operation_jaxprs(equation))
    for equation in jaxpr.eqns)


def _spec(variable: Literal | Var) -> jax.ShapeDtypeStruct:
  """Returns shape and dtype of an operand or a result."""
  aval: Any = variable.aval
  return aval


def _is_closed(x: object) -> bool:
  """Returns whether a parameter of an operation is a program itself."""
  return isinstance(x, ClosedJaxpr)
