"""The compiled programs of a run, each compiled once and for its devices."""

import functools
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
  """What a run calls; each is compiled when it's first called.

  Attributes:
    init: (run_key) -> the population before its first generation.
    train_generation: (population, run_key) -> (population, report); the
      population is donated.
    restart: (population, run_key) -> the population with new members in
      place of all; the population is donated.
    population: shapes, dtypes and shardings of what these return.
  """

  init: Any
  train_generation: Any
  restart: Any
  population: Any


def make_programs(
  setup: Setup, mesh: jax.sharding.Mesh, run_key: types.Key
) -> Programs:
  """What a run calls, traced as far as the shapes need it.

  Args:
    setup: what the population is composed of.
    mesh: its mesh.
    run_key: the run's key, or keys [P], replicated over the mesh.

  Returns:
    The programs.
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
  once, often = _compiler_options(
    mesh.devices.flat[0].platform, setup.config.exact_placement
  )
  init: Any = jax.jit(init_fn, out_shardings=shardings, compiler_options=once)
  return Programs(
    init=init,
    train_generation=jax.jit(
      train_fn,
      donate_argnums=0,
      out_shardings=(shardings, replicated),
      compiler_options=often,
    ),
    restart=jax.jit(
      restart_fn,
      donate_argnums=0,
      out_shardings=shardings,
      compiler_options=once,
    ),
    population=init.eval_shape(run_key),
  )


def compile_generation(programs: Programs, run_key: types.Key) -> Programs:
  """Compiles the largest of them, so that others may do something meanwhile.

  Args:
    programs: of `make_programs`.
    run_key: as there.

  Returns:
    The programs, with a compiled `train_generation`.
  """
  lowered = programs.train_generation.lower(programs.population, run_key)
  return programs._replace(train_generation=lowered.compile())


@functools.cache
def _compiler_options(
  platform: str, exact: bool
) -> tuple[dict[str, Any], dict[str, Any]]:
  """What the compiler is told, of programs that run once and often.

  Physics is thousands of small operations. On a CPU LLVM's costlier passes
  take a quarter of the time that compiling takes, and gain 2 % in speed at
  most; the newer way of fusing operations takes another third, and makes
  updates 20 % faster. Fused operations also round differently, by what they
  are fused with, and that depends on whether there is one device or several.
  """
  if platform != "cpu":
    return {}, {}
  often: dict[str, Any] = {"xla_backend_optimization_level": 1}
  if exact:
    often["xla_disable_hlo_passes"] = "fusion"
  once = often | {"xla_cpu_use_fusion_emitters": False}
  for options in (once, often):
    for name, value in list(options.items()):
      try:
        jax.jit(lambda: 0, compiler_options={name: value})()
      except jax.errors.JaxRuntimeError:  # Unknown to this version of XLA.
        del options[name]
  return once, often


def _shardings(setup: Setup, members: Any, replicated: Any) -> Any:
  """Where what is trained is kept: members apart, all else on every device."""
  if setup.map_elites is None:
    return Population(members, replicated, replicated, replicated)
  emitter: Any = replicated
  repertoire: Any = replicated
  if setup.map_elites.shard_repertoire:
    # What is small stays on every device, where all of it is looked at.
    repertoire = map_elites.Repertoire(
      genotypes=members,
      fitness=replicated,
      descriptors=replicated,
      num_outside=replicated,
      tessellation=replicated,
    )
  if setup.controller is not None:
    state = map_elites.PBTEmitterState
    emitter = state(*[replicated] * len(state._fields))
    emitter = emitter._replace(members=members)
  return illumination.Illumination(emitter, repertoire, replicated, replicated)
