"""The compiled programs of a run, each compiled once and for its devices."""

import concurrent.futures
import functools
import time
from typing import Any, NamedTuple

import jax
from jax.sharding import NamedSharding, PartitionSpec

from qdrl_haiku import types
from qdrl_haiku.training import generation as generation_lib
from qdrl_haiku.training import population as population_lib
from qdrl_haiku.training import sharding
from qdrl_haiku.training.population import Population, Setup


class Programs(NamedTuple):
  """What a run calls.

  Attributes:
    init: (run_key) -> the population before its first generation.
    train_generation: (population, run_key) -> (population, report); the
      population is donated.
    restart: (population, run_key) -> the population with new members in
      place of all; the population is donated. Compiled when first called.
    compile_seconds: what compiling the first two took.
  """

  init: jax.stages.Compiled
  train_generation: jax.stages.Compiled
  restart: jax.stages.Wrapped
  compile_seconds: float


def compile_programs(
  setup: Setup, mesh: jax.sharding.Mesh, run_key: types.Key
) -> Programs:
  """Compiles what a run calls.

  Args:
    setup: what the population is composed of.
    mesh: its mesh.
    run_key: the run's key, or keys [P], replicated over the mesh.

  Returns:
    The programs.
  """
  start = time.monotonic()
  replicated = NamedSharding(mesh, PartitionSpec())
  members = NamedSharding(mesh, PartitionSpec(sharding.AXIS))
  shardings: Any = (members, members, members, replicated)
  shardings = Population(*shardings)
  init = jax.jit(
    functools.partial(population_lib.init_population, setup),
    out_shardings=shardings,
  )
  train_generation = jax.jit(
    functools.partial(generation_lib.train_generation, setup),
    donate_argnums=0,
    out_shardings=(shardings, replicated),
  )
  restart = jax.jit(
    functools.partial(population_lib.restart_members, setup),
    donate_argnums=0,
    out_shardings=shardings,
  )
  population = jax.tree.map(
    lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s),
    *_broadcast(init.eval_shape(run_key), shardings),
  )
  # The one is compiled while the other is traced and compiled.
  with concurrent.futures.ThreadPoolExecutor() as executor:
    init_compiled = executor.submit(init.lower(run_key).compile)
    train_generation_compiled = train_generation.lower(
      population, run_key
    ).compile()
  return Programs(
    init=init_compiled.result(),
    train_generation=train_generation_compiled,
    restart=restart,
    compile_seconds=time.monotonic() - start,
  )


def _broadcast(
  population: Population, shardings: Population
) -> tuple[Population, Population]:
  """The population, and a tree of its structure with a sharding per leaf."""
  return population, jax.tree.map(
    lambda s, tree: jax.tree.map(lambda _: s, tree), shardings, population
  )
