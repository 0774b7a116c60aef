"""The compiled programs of a run, each compiled once and for its devices."""

import concurrent.futures
import functools
import time
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from qdrl_haiku import types
from qdrl_haiku.cpu import compiler_options
from qdrl_haiku.distributed import sharding
from qdrl_haiku.runs.engines import State, make_engine
from qdrl_haiku.runs.program import Program
from qdrl_haiku.storage.program_cache import ProgramCache
from qdrl_haiku.training.initial_states import InitialStates
from qdrl_haiku.training.reports import GenerationReport
from qdrl_haiku.training.setup import Setup


class _Draw:
  """Draws initial states, before the first generation or in a later one."""

  def __init__(self, first: Program, later: Program) -> None:
    self._first = first
    self._later = later

  def __call__(self, run_key: types.Key, generation: int) -> InitialStates:
    program = self._later if generation else self._first
    # A number of NumPy's is known to all processes.
    return program(run_key, np.int32(generation))

  def compile(self) -> None:
    """Compiles what later generations need."""
    self._later.compile()


class Programs(NamedTuple):
  """Holds the programs of a run, each compiled when it's first called.

  Attributes:
    draw: (run_key, generation) -> `InitialStates` of a generation; 0 is the one
      before the first.
    init: (run_key) -> the population before its first generation.
    train: (population, pool, run_key) -> (population, trained), the first part
      of a generation; the population is donated, here and below.
    evaluate: (population, trained, env_states, run_key) -> (population,
      report), the second one.
    restart: (population, run_key) -> the population with new members in
      place of all.
    population: shapes, dtypes and shardings of what these return.
    initial: those of what a generation draws.
    training: what `train` waits for, None if it waits for nothing.
    evaluating: what `evaluate` waits for, likewise.
  """

  draw: Any
  init: Any
  train: Any
  evaluate: Any
  restart: Any
  population: State
  initial: InitialStates
  training: concurrent.futures.Future[Any] | None = None
  evaluating: concurrent.futures.Future[Any] | None = None

  def wait_to_train(self) -> None:
    """Waits until `train` is compiled."""
    if self.training is not None:
      self.training.result()

  def wait_to_evaluate(self, trained: Any) -> float:
    """Waits for `evaluate` to be compiled; returns the seconds of waiting."""
    if self.evaluating is None or self.evaluating.done():
      return 0.0
    jax.block_until_ready(trained)
    begin = time.monotonic()
    concurrent.futures.wait([self.evaluating])
    return time.monotonic() - begin

  def train_generation(
    self, population: State, run_key: types.Key, generation: int
  ) -> tuple[State, GenerationReport]:
    """Calls all that makes a generation."""
    initial = self.draw(run_key, generation)
    population, trained = self.train(population, initial.pool, run_key)
    return self.evaluate(population, trained, initial.evaluation, run_key)


def make_programs(
  setup: Setup,
  mesh: jax.sharding.Mesh,
  run_key: types.Key | jax.ShapeDtypeStruct,
  cache: ProgramCache | None = None,
) -> Programs:
  """Returns what a run calls, traced as far as the shapes need it."""
  replicated = NamedSharding(mesh, PartitionSpec())
  members = NamedSharding(mesh, PartitionSpec(sharding.AXIS))
  engine = make_engine(setup)
  shardings, trained = engine.shardings(members, replicated)
  options = compiler_options.of_mesh(mesh)
  devices = list(mesh.devices.flat)
  to_init = options.often if engine.init_evaluates else options.once
  draw_jit: Any = jax.jit(
    engine.draw,
    static_argnums=2,
    out_shardings=members,
    compiler_options=options.once,
  )
  init_jit: Any = jax.jit(
    engine.init, out_shardings=shardings, compiler_options=to_init
  )
  train_jit: Any = jax.jit(
    engine.train,
    donate_argnums=0,
    out_shardings=(shardings, trained),
    compiler_options=options.always,
  )
  evaluate_jit: Any = jax.jit(
    engine.evaluate,
    donate_argnums=0,
    out_shardings=(shardings, replicated),
    compiler_options=options.often,
  )

  shapes = cache.read("shapes") if cache is not None else None
  if shapes is None:
    initial = [
      draw_jit.eval_shape(run_key, np.int32(0), n) for n in engine.num_agents
    ]
    shapes = _bare((init_jit.eval_shape(run_key, initial[0]), initial))
    if cache is not None:
      cache.write("shapes", shapes)
  population = _placed(shapes[0], shardings)
  first, later = _placed(shapes[1], members)

  draws = {
    n: Program(
      f"draw_{n}",
      functools.partial(draw_jit.lower, run_key, np.int32(0), n),
      options.once,
      devices,
      cache,
    )
    for n in engine.num_agents
  }

  draw = _Draw(*(draws[n] for n in engine.num_agents))
  init = Program(
    "init", lambda: init_jit.lower(run_key, first), to_init, devices, cache
  )
  train = Program(
    "train",
    lambda: train_jit.lower(population, later.pool, run_key),
    options.always,
    devices,
    cache,
  )
  evaluate = Program(
    "evaluate",
    lambda: evaluate_jit.lower(
      *train_jit.eval_shape(population, later.pool, run_key),
      later.evaluation,
      run_key,
    ),
    options.often,
    devices,
    cache,
  )
  return Programs(
    draw=draw,
    init=lambda run_key: init(run_key, draw(run_key, 0)),
    train=train,
    evaluate=evaluate,
    restart=jax.jit(
      engine.restart,
      donate_argnums=0,
      out_shardings=shardings,
      compiler_options=options.once,
    ),
    population=population,
    initial=later,
  )


def compile_generation(programs: Programs) -> Programs:
  """Begins to compile what a generation is, which goes on in a thread.

  What trains takes longest of all that a run waits for, so it's traced before
  anything else is. What draws is called with it, and so comes next.
  """
  programs.train.trace()
  executor = concurrent.futures.ThreadPoolExecutor(max_workers=1)
  training = executor.submit(programs.train.compile)
  executor.submit(programs.draw.compile)
  evaluating = executor.submit(programs.evaluate.compile)
  executor.shutdown(wait=False)
  # XLA compiles in the meantime what trains.
  tracer = concurrent.futures.ThreadPoolExecutor(max_workers=1)
  tracer.submit(programs.evaluate.trace)
  tracer.shutdown(wait=False)
  return programs._replace(
    train=lambda *args: training.result()(*args),
    evaluate=lambda *args: evaluating.result()(*args),
    training=training,
    evaluating=evaluating,
  )


def _bare(tree: Any) -> Any:
  """Returns shapes and dtypes without the devices on which arrays are."""
  return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), tree)


def _placed(tree: Any, shardings: Any) -> Any:
  """Returns shapes and dtypes of arrays on devices."""
  return jax.tree.map(
    lambda where, part: jax.tree.map(
      lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=where), part
    ),
    shardings,
    tree,
  )
