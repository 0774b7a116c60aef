"""Counts an update's FLOPs, and measures the machine's peak."""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from qdrl_haiku.benchmarks import timing
from qdrl_haiku.distributed import sharding as sharding_lib
from qdrl_haiku.training import generation
from qdrl_haiku.training.setup import Setup


def flops_per_update(setup: Setup) -> float:
  """Returns what XLA counts for one critic step of one agent."""
  key = jax.random.key(0)
  # A member learns alike whether there is a repertoire or not.
  alone = setup._replace(mesh=None, map_elites=None)
  init = functools.partial(generation.init, alone)
  state = jax.eval_shape(init, key)
  learner, hyperparams, transition = jax.tree.map(
    lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype),
    (state.members.learner, state.hyperparams, state.members.replay.storage),
  )
  shape = (setup.learner.batches_per_update, setup.config.batch_size)
  transitions = jax.tree.map(
    lambda x: jax.ShapeDtypeStruct((*shape, *x.shape[1:]), x.dtype), transition
  )
  update: Any = jax.jit(setup.learner.update)
  compiled = update.lower(learner, hyperparams, transitions, key).compile()
  return compiled.cost_analysis()["flops"] / shape[0]


def of_peak(setup: Setup, updates_per_second: float) -> dict[str, float]:
  """Returns what updates at a rate make of the machine."""
  assert setup.mesh is not None
  flops, peak = flops_per_update(setup), matmul_peak(setup.mesh)
  return {
    "flops_per_update": flops,
    "achieved_gflops": updates_per_second * flops / 1e9,
    "matmul_peak_gflops": peak / 1e9,
    "fraction_of_peak": updates_per_second * flops / peak,
  }


def matmul_peak(mesh: jax.sharding.Mesh) -> float:
  """Measures what products of large float32 matrices reach on all devices."""
  size = matmul_size(mesh.devices.flat[0].platform)
  where = jax.NamedSharding(mesh, jax.P(sharding_lib.AXIS))
  x = jax.device_put(jnp.ones((mesh.size, size, size)), where)
  multiply = jax.jit(lambda x: 1e-3 * jnp.matmul(x, x), out_shardings=where)
  return 2 * mesh.size * size**3 / timing.median_seconds(multiply, x, 9)


def matmul_size(platform: str) -> int:
  """Returns how large matrices have to be for the fastest products."""
  return 1024 if platform == "cpu" else 8192
