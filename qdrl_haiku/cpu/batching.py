"""Turns an environment's step of one instance into the step of a batch.

Physics is thousands of operations on a few numbers, which XLA compiles to
hundreds of kernels. With jax 0.10 a single kernel is 1.3 to 1.7 times as fast
with 8 instances, and 1.1 to 3 times with 64. Later versions gain nothing by it,
and can't make one: a library computes sums of 4,096 numbers and more.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Jaxpr, jaxpr_as_fun

from qdrl_haiku.cpu import fusion, small_operations, switch, xla
from qdrl_haiku.types import Tree

# From this many instances on, many kernels are faster, as they use threads.
_TOO_MANY = 512
# Operations that become code; others may call libraries, which kernels can't.
_CODE = frozenset({
  "abs", "acos", "acosh", "add", "and", "argmax", "argmin", "asin", "asinh",
  "atan", "atan2", "atanh", "bitcast_convert_type", "broadcast_in_dim",
  "cbrt", "ceil", "clamp", "clz", "concatenate", "cond",
  "convert_element_type", "copy", "cos", "cosh", "custom_jvp_call",
  "custom_vjp_call", "device_put", "div", "dynamic_slice",
  "dynamic_update_slice", "eq", "erf", "erf_inv", "erfc", "exp", "exp2",
  "expm1", "floor", "gather", "ge", "gt", "integer_pow", "iota",
  "is_finite", "jit", "le", "log", "log1p", "logistic", "lt", "max", "min",
  "mul", "ne", "neg", "nextafter", "not", "or", "pad", "platform_index",
  "pow", "random_bits", "random_fold_in", "random_split", "random_unwrap",
  "random_wrap", "reduce_and", "reduce_max", "reduce_min", "reduce_or",
  "reduce_prod", "reduce_sum", "rem", "reshape", "rev", "round", "rsqrt",
  "scan", "select_n", "shift_left", "shift_right_arithmetic",
  "shift_right_logical", "sign", "sin", "sinh", "slice", "split", "sqrt",
  "square", "squeeze", "stack", "stop_gradient", "sub", "tan", "tanh",
  "threefry2x32", "tile", "transpose", "unstack", "while", "xor"})


def rewrite_for_batching(
  function: Callable[..., Tree], *specs: Tree
) -> Callable[..., Tree]:
  """Makes a function of one instance, of given specs, one of a batch."""
  jaxpr, result = jax.make_jaxpr(function, return_shape=True)(*specs)
  # An accelerator would start several kernels for each turn of a loop that
  # stands for a scatter, and batches small products by itself.
  if switch.is_switched_on():
    jaxpr = small_operations.rewrite_small_operations(jaxpr)
  treedef = jax.tree.structure(result)
  of_all = jax.vmap(jaxpr_as_fun(jaxpr))
  kernel: Callable[..., list[jax.Array]]
  many_kernels = kernel = jax.jit(of_all)
  if (place := _place_of_mark(jaxpr)) is not None:
    kernel = fusion.fuse_into_one_kernel(of_all, place)

  def call(*args: Tree) -> Tree:
    leaves = jax.tree.leaves(args)
    is_large = leaves[0].shape[0] >= _TOO_MANY
    results = (many_kernels if is_large else kernel)(*leaves)
    return jax.tree.unflatten(treedef, results)

  return call


def _place_of_mark(jaxpr: ClosedJaxpr) -> int | None:
  """Returns the index of a numeric result; None if it shall be no kernel."""
  if xla.calls_library_for_sums() or not _is_code(jaxpr.jaxpr):
    return None
  computed = {id(x) for eqn in jaxpr.jaxpr.eqns for x in eqn.outvars}
  for i, variable in enumerate(jaxpr.jaxpr.outvars):
    is_number = jnp.issubdtype(variable.aval.dtype, jnp.number)
    # Arguments and constants might not be results of the call.
    if is_number and id(variable) in computed:
      return i
  return None


def _is_code(jaxpr: Jaxpr) -> bool:
  """Returns whether no operation calls a library."""
  return all(
    equation.primitive.name in _CODE
    and all(
      _is_code(x.jaxpr) for x in small_operations.operation_jaxprs(equation))
    for equation in jaxpr.eqns)
