"""Decides what XLA fuses into one kernel on CPUs, and what it doesn't."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.experimental.xla_metadata import set_xla_metadata

from qdrl_haiku.cpu import small_operations, switch
from qdrl_haiku.types import Tree

# Marks a call, and keeps XLA from inlining it; harmless on CPUs only.
_MARK = {"xla_cpu_small_call": "true", "inlineable": "false"}


def fuse_into_one_kernel(
  function: Callable[..., list[jax.Array]], place: int = 0
) -> Callable[..., list[jax.Array]]:
  """Compiles a function to one kernel on CPUs, and as usual elsewhere.

  XLA makes a kernel of every few operations, and to start one costs a CPU about
  as much as a thousand additions. A marked call is compiled to one kernel, as
  small loops are anyway. It must have no product, sort or decomposition, nor a
  large sum with jax 0.11, for which XLA would call a library; with a scatter
  it's compiled as usual. `place` is the index of a result that is computed from
  the arguments.
  """
  many_kernels = jax.jit(function)
  kernel = jax.jit(
    lambda *args: (function(*args), jax.lax.optimization_barrier(args)))

  def call(*args: jax.Array) -> list[jax.Array]:
    if not switch.is_switched_on():
      return many_kernels(*args)
    # Instances of a batch scatter where they write in different places. What
    # is traced here isn't traced again below.
    if small_operations.scatters(kernel.trace(*args).jaxpr.jaxpr):
      return many_kernels(*args)
    # XLA crashes if a kernel doesn't use one of its arguments. So all arguments
    # are results too, and the barrier makes the marked result need them.
    results, same = kernel(*args)
    marked = set_xla_metadata(results[place], **_MARK)
    results[place], _ = jax.lax.optimization_barrier((marked, same))
    return results

  return call


@jax.custom_vjp
def without_gradient_fusion(x: jax.Array) -> jax.Array:
  """Returns x; on a CPU, XLA doesn't merge its gradient into later loops.

  XLA merges a computation into the loops that use its result, and repeats it
  for each of their numbers, such as a critic's target for each unit of its last
  hidden layer. It merges nothing with a loop that may run more than once, so
  the gradient is put into such a loop.
  """
  return x


def computed_once(x: Tree) -> Tree:
  """Returns x; on a CPU, XLA doesn't compute it anew for each of its uses."""
  if not switch.is_switched_on():
    return x
  once = jax.lax.optimization_barrier(jnp.int32(1))
  empty = jax.tree.map(jnp.zeros_like, x)
  return jax.lax.fori_loop(0, once, lambda *_: x, empty)


without_gradient_fusion.defvjp(
  lambda x: (x, None), lambda _, gradient: (computed_once(gradient),))


def fuse_gradient_by_outputs(weights: jax.Array) -> jax.Array:
  """Returns the weights; on a CPU their gradient's product is transposed.

  With few outputs, a product with outputs as rows is five to nine times as
  fast: XLA takes 23 microseconds for [64, 256] x [256, 12], and 3 to 5 for its
  transpose.
  """
  if not switch.is_switched_on():
    return weights
  return jax.lax.optimization_barrier(weights.T).T
