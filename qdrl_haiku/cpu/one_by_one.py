"""Loops over members in which each is computed as if it were alone.

One member's numbers then depend, to the last bit, on that member only. The same
function under `jax.vmap` is compiled to other code for each number of members,
and that code rounds differently: a product with one member is no batched
product; elementwise operations are fused with others, so that other
multiplications and additions become one instruction with one rounding.

A loop's body is compiled by itself, and is the same program whatever is around
it, with two exceptions that are prevented here: XLA dissolves loops that it
knows to run once, and indexing along an axis of length one.

On a CPU the loop costs nothing: products of a batch run one after the other
there anyway, and one member's arrays stay in the cache.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap

from qdrl_haiku.cpu import switch
from qdrl_haiku.types import Array, Tree


def one_by_one(function: Callable[..., Tree]) -> Callable[..., Tree]:
  """Makes a function that `jax.vmap` turns into a loop over one axis."""
  function = jax.jit(function)  # So that all calls below share one trace.
  looped = custom_vmap(function)

  @looped.def_vmap
  def rule(axis_size: int, in_batched: Tree, *args: Tree) -> tuple[Tree, Tree]:
    leaves, treedef = jax.tree.flatten(args)
    batched = jax.tree.leaves(in_batched)
    num_rows = max(axis_size, 2)
    if axis_size == 1:
      leaves = [
        jnp.concatenate([x, x]) if is_batched else x
        for x, is_batched in zip(leaves, batched, strict=True)]

    def call(i: Array) -> Tree:
      rows = [
        jax.lax.dynamic_index_in_dim(x, i, keepdims=False) if is_batched else x
        for x, is_batched in zip(leaves, batched, strict=True)]
      return function(*jax.tree.unflatten(treedef, rows))

    def body(carry: tuple[Array, Tree]) -> tuple[Array, Tree]:
      i, results = carry
      return i + 1, jax.tree.map(
        lambda rows, row: jax.lax.dynamic_update_index_in_dim(rows, row, i, 0),
        results, call(i))

    first = jnp.zeros((), jnp.int32)
    shapes = jax.eval_shape(call, first)
    # So that XLA doesn't know how often.
    times = jax.lax.optimization_barrier(jnp.int32(axis_size))
    empty = jax.tree.map(lambda x: _empty(num_rows, x), shapes)
    _, results = jax.lax.while_loop(
      lambda carry: carry[0] < times, body, (first, empty))
    results = jax.tree.map(lambda x: x[:axis_size], results)
    return results, jax.tree.map(lambda _: True, shapes)

  return looped


def one_by_one_on_cpu(function: Callable[..., Tree]) -> Callable[..., Tree]:
  """Makes a function `one_by_one` on a CPU, and leaves it elsewhere."""
  return one_by_one(function) if switch.is_switched_on() else function


def one_by_one_alone(function: Callable[..., Tree]) -> Callable[..., Tree]:
  """Makes a function whose numbers on a CPU depend on nothing around it."""
  mapped = jax.vmap(one_by_one_on_cpu(function))

  def call(*args: Tree) -> Tree:
    args = jax.tree.map(lambda x: x[None], args)
    return jax.tree.map(lambda x: x[0], mapped(*args))

  return call


def _empty(num_rows: int, x: jax.ShapeDtypeStruct) -> Array:
  """Returns rows to be written over."""
  if not jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
    return jnp.zeros((num_rows, *x.shape), x.dtype)
  key = jax.eval_shape(jax.random.key_data, x)
  data = jnp.zeros((num_rows, *key.shape), key.dtype)
  return jax.random.wrap_key_data(data, impl=x.dtype._impl)
