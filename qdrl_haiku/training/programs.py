"""The compiled programs of a run, each compiled once and for its devices."""

import concurrent.futures
import functools
import time
from typing import Any, NamedTuple

import jax
from jax.sharding import NamedSharding, PartitionSpec

from qdrl_haiku import map_elites, types, xla
from qdrl_haiku.training import generation as generation_lib
from qdrl_haiku.training import illumination, sharding
from qdrl_haiku.training import population as population_lib
from qdrl_haiku.training.population import Population
from qdrl_haiku.training.setup import Setup


class Programs(NamedTuple):
  """What a run calls; each is compiled when it's first called.

  Attributes:
    init: (run_key) -> the population before its first generation.
    train: (population, run_key) -> (population, trained), the first part of a
      generation; the population is donated, here and below.
    select: (population, trained, run_key) -> (population, report), the second.
    restart: (population, run_key) -> the population with new members in
      place of all.
    population: shapes, dtypes and shardings of what these return.
    training: what `train` waits for, None if it waits for nothing.
    selecting: what `select` waits for, likewise.
  """

  init: Any
  train: Any
  select: Any
  restart: Any
  population: Any
  training: concurrent.futures.Future[Any] | None = None
  selecting: concurrent.futures.Future[Any] | None = None

  def wait_to_train(self) -> None:
    """Waits until `train` is compiled."""
    if self.training is not None:
      self.training.result()

  def wait_to_select(self, trained: Any) -> float:
    """Waits after training until `select` is compiled, in a first generation.

    Args:
      trained: of `train`.

    Returns:
      Seconds between the end of training and the end of compiling, 0 if that
      came first.
    """
    if self.selecting is None or self.selecting.done():
      return 0.0
    jax.block_until_ready(trained)
    begin = time.monotonic()
    concurrent.futures.wait([self.selecting])
    return time.monotonic() - begin

  def train_generation(
    self, population: Any, run_key: types.Key
  ) -> tuple[Any, generation_lib.GenerationReport]:
    """Calls both parts of a generation.

    Args:
      population: as it is; donated.
      run_key: the run's key, or keys [P].

    Returns:
      The population after the generation, and what happened.
    """
    population, trained = self.train(population, run_key)
    return self.select(population, trained, run_key)


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
    generation_lib.train,
    generation_lib.select,
    population_lib.restart_members,
  )
  if setup.map_elites is not None:
    functions = (
      illumination.init_illumination,
      illumination.train,
      illumination.select,
      illumination.restart_members,
    )
  init_fn, train_fn, select_fn, restart_fn = (
    functools.partial(function, setup) for function in functions
  )
  shardings = _shardings(setup, members, replicated)
  num_trained = setup.batch_sizes[-1]
  is_even = sharding.num_slots(mesh, num_trained) == num_trained
  fast, quick, hasty = _compiler_options(
    mesh.devices.flat[0].platform, setup.config.exact_placement
  )
  init: Any = jax.jit(
    init_fn,
    out_shardings=shardings,
    # The first agents of a repertoire are evaluated.
    compiler_options=hasty if setup.map_elites is None else quick,
  )
  return Programs(
    init=init,
    train=jax.jit(
      train_fn,
      donate_argnums=0,
      out_shardings=(shardings, members if is_even else replicated),
      compiler_options=fast,
    ),
    select=jax.jit(
      select_fn,
      donate_argnums=0,
      out_shardings=(shardings, replicated),
      compiler_options=quick,
    ),
    restart=jax.jit(
      restart_fn,
      donate_argnums=0,
      out_shardings=shardings,
      compiler_options=hasty,
    ),
    population=init.eval_shape(run_key),
  )


def evaluating(setup: Setup, function: Any) -> Any:
  """A function of arrays on all devices, compiled as what evaluates is.

  Args:
    setup: with a mesh.
    function: (*trees) -> tree of a few numbers.

  Returns:
    The function, whose results every device has.
  """
  assert setup.mesh is not None
  _, quick, _ = _compiler_options(
    setup.mesh.devices.flat[0].platform, setup.config.exact_placement
  )
  return jax.jit(
    function,
    out_shardings=NamedSharding(setup.mesh, PartitionSpec()),
    compiler_options=quick,
  )


def compile_generation(programs: Programs, run_key: types.Key) -> Programs:
  """Begins to compile both parts of a generation, which goes on in a thread.

  What trains takes longest of all that a run waits for, so it's traced before
  anything else is.

  Args:
    programs: of `make_programs`.
    run_key: as there.

  Returns:
    The programs, with a `train` and a `select` that wait until they are
    compiled.
  """
  population, trained = programs.train.eval_shape(programs.population, run_key)
  lowered = programs.train.lower(programs.population, run_key)
  executor = concurrent.futures.ThreadPoolExecutor(max_workers=1)
  training = executor.submit(lowered.compile)
  selecting = executor.submit(
    lambda: programs.select.lower(population, trained, run_key).compile()
  )
  executor.shutdown(wait=False)
  return programs._replace(
    train=lambda *args: training.result()(*args),
    select=lambda *args: selecting.result()(*args),
    training=training,
    selecting=selecting,
  )


@functools.cache
def _compiler_options(
  platform: str, exact: bool
) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
  """What the compiler is told: for speed, to be quick, to be quickest.

  On a CPU LLVM's costlier passes take a quarter of the time that compiling
  takes, and gain 2 % in speed at most; the newer way of fusing operations takes
  another third, and makes updates 20 % faster, but nothing else. Fused
  operations also round differently, by what they are fused with, and that
  depends on whether there is one device or several. Without any of LLVM's
  passes what resets environments is compiled three times as fast, and runs a
  fifth as fast, once.
  """
  if platform != "cpu":
    return {}, {}, {}
  level = "xla_backend_optimization_level"
  fast: dict[str, Any] = {level: 1}
  if exact:
    fast["xla_disable_hlo_passes"] = "fusion"
  quick = fast | {"xla_cpu_use_fusion_emitters": False}
  hasty = quick | {level: 0}
  fast, quick, hasty = map(xla.known_options, (fast, quick, hasty))
  return fast, quick, hasty


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
