"""The compiled programs of a run, each compiled once and for its devices."""

import concurrent.futures
import functools
import math
import time
from typing import Any, NamedTuple

import jax
from jax.sharding import NamedSharding, PartitionSpec

from qdrl_haiku import map_elites, types
from qdrl_haiku.training import generation as generation_lib
from qdrl_haiku.training import illumination, sharding
from qdrl_haiku.training import population as population_lib
from qdrl_haiku.training.population import Population
from qdrl_haiku.training.setup import Setup


class Programs(NamedTuple):
  """What a run calls.

  Attributes:
    init: (run_key) -> the population before its first generation.
    train_generation: (population, run_key) -> (population, report); the
      population is donated.
    restart: (population, run_key) -> the population with new members in
      place of all; the population is donated. Compiled when first called.
    population: shapes, dtypes and shardings of what these return.
    compile_seconds: what compiling the first two took; NaN until they are.
  """

  init: Any
  train_generation: Any
  restart: Any
  population: Any
  compile_seconds: float = math.nan


def make_programs(
  setup: Setup, mesh: jax.sharding.Mesh, run_key: types.Key
) -> Programs:
  """What a run calls, traced as far as the shapes need it.

  Args:
    setup: what the population is composed of.
    mesh: its mesh.
    run_key: the run's key, or keys [P], replicated over the mesh.

  Returns:
    The programs, to be compiled.
  """
  replicated = NamedSharding(mesh, PartitionSpec())
  members = NamedSharding(mesh, PartitionSpec(sharding.AXIS))
  functions: Any = (
    population_lib.init_population,
    generation_lib.train_generation,
    population_lib.restart_members,
  )
  if setup.map_elites is not None:
    functions = (
      illumination.init_illumination,
      illumination.train_generation,
      illumination.restart_members,
    )
  init_fn, train_fn, restart_fn = (
    functools.partial(function, setup) for function in functions
  )
  shardings = _shardings(setup, members, replicated)
  init = jax.jit(init_fn, out_shardings=shardings)
  return Programs(
    init=init,
    train_generation=jax.jit(
      train_fn, donate_argnums=0, out_shardings=(shardings, replicated)
    ),
    restart=jax.jit(restart_fn, donate_argnums=0, out_shardings=shardings),
    # The trace is that of which `compile_programs` compiles.
    population=init.eval_shape(run_key),
  )


def compile_programs(programs: Programs, run_key: types.Key) -> Programs:
  """Compiles what a run calls.

  Args:
    programs: of `make_programs`.
    run_key: as there.

  Returns:
    The programs, compiled.
  """
  start = time.monotonic()
  # The one is compiled while the other is traced and compiled.
  with concurrent.futures.ThreadPoolExecutor() as executor:
    init = executor.submit(programs.init.lower(run_key).compile)
    train_generation = programs.train_generation.lower(
      programs.population, run_key
    ).compile()
  return programs._replace(
    init=init.result(),
    train_generation=train_generation,
    compile_seconds=time.monotonic() - start,
  )


def _shardings(setup: Setup, members: Any, replicated: Any) -> Any:
  """Where what is trained is kept: members apart, all else on every device."""
  if setup.map_elites is None:
    return Population(members, replicated, replicated, replicated)
  emitter: Any = replicated
  if setup.controller is not None:
    state = map_elites.PBTEmitterState
    emitter = state(*[replicated] * len(state._fields))
    emitter = emitter._replace(members=members)
  return illumination.Illumination(emitter, replicated, replicated, replicated)
