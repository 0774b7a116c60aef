"""The compiled programs of a run, each compiled once and for its devices."""

import concurrent.futures
import functools
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from absl import logging
from jax.experimental import serialize_executable
from jax.sharding import NamedSharding, PartitionSpec

from qdrl_haiku import types
from qdrl_haiku.cpu import compiler_options
from qdrl_haiku.distributed import sharding
from qdrl_haiku.storage import fingerprints
from qdrl_haiku.storage.program_cache import ProgramCache
from qdrl_haiku.training import generation
from qdrl_haiku.training import state as state_lib
from qdrl_haiku.training.members import InitialStates
from qdrl_haiku.training.setup import Setup
from qdrl_haiku.training.state import GenerationReport, State, Trained

_HIT = "/jax/compilation_cache/cache_hits"
_found = threading.local()


class Program:
  """A function that is compiled when it's first called, or read if it's kept.

  What is kept is the machine's code, under a name for runs of the same kind,
  and under what it was compiled from for all others. So a run that reads it
  computes the same bits as the one that compiled it, and doesn't trace.
  """

  def __init__(
    self,
    name: str,
    lower: Callable[[], jax.stages.Lowered],
    options: Mapping[str, Any],
    devices: Sequence[jax.Device],
    cache: ProgramCache | None = None,
  ) -> None:
    """Names what is compiled."""
    self._name = name
    self._lower = lower
    self._options = options
    self._devices = devices
    self._cache = cache
    self._lowered: jax.stages.Lowered | None = None
    self._compiled: jax.stages.Compiled | None = None
    self._compiling = threading.Lock()

  def __call__(self, *args: types.Tree) -> types.Tree:
    """Calls it with arguments of the shapes that it was lowered for."""
    return self.compile()(*args)

  def trace(self) -> None:
    """Traces the program, unless its machine code is kept."""
    with self._compiling:
      is_kept = self._cache is not None and self._cache.has(self._name)
      if self._compiled is None and not is_kept:
        self._lowered = self._lower()

  def compile(self) -> jax.stages.Compiled:
    """Returns the program; threads that ask for it wait for the first one."""
    with self._compiling:
      if self._compiled is None:
        self._compiled = self._by_name() or self._by_code()
        self._lowered = None
      return self._compiled

  def _by_name(self) -> jax.stages.Compiled | None:
    """Returns what an earlier run of the same kind has kept."""
    code = self._cache.read(self._name) if self._cache is not None else None
    return self._read(code) if code is not None else None

  def _by_code(self) -> jax.stages.Compiled:
    """Returns what was kept of the same code, or compiles it."""
    lowered = self._lowered or self._lower()
    if self._cache is None:
      return lowered.compile()
    # Unused arguments aren't in the code, and are checked all the same.
    code = fingerprints.digest([
      fingerprints.of_compiler(),
      dict(self._options),
      lowered.as_text(),
      str(lowered.args_info),
      str(lowered.out_info),
    ])
    compiled = self._read(code)
    if compiled is None:
      _found.is_hit = False
      compiled = lowered.compile()
      # What jax itself has read from its cache can't be written once more.
      if _found.is_hit or not self._write(code, compiled):
        return compiled
    self._cache.write(self._name, code)
    return compiled

  def _read(self, code: str) -> jax.stages.Compiled | None:
    assert self._cache is not None
    written = self._cache.read_shared(code)
    if written is None:
      return None
    _prepare_lapack()
    try:
      machine_code, in_tree, out_tree = written
      return serialize_executable.deserialize_and_load(
        machine_code, in_tree, out_tree, execution_devices=self._devices
      )
    except Exception as error:
      logging.debug("%s can't be taken: %s", self._name, error)
      return None

  def _write(self, code: str, compiled: jax.stages.Compiled) -> bool:
    """Keeps a program that hasn't run; one that has can't be."""
    assert self._cache is not None
    try:
      written = serialize_executable.serialize(compiled)
    except Exception as error:  # Such as one that calls Python.
      logging.debug("%s can't be kept: %s", self._name, error)
      return False
    return self._cache.write_shared(code, written)


@functools.cache
def _prepare_lapack() -> None:
  """Fills in where LAPACK's functions are.

  jax does so when it lowers the first that calls one; without it a program that
  was read calls address 0.
  """
  matrix = jax.ShapeDtypeStruct((1, 1), jnp.float32)
  jax.jit(jnp.linalg.cholesky).lower(matrix)


def _note_hit(event: str, **_: Any) -> None:
  if event == _HIT:
    _found.is_hit = True


jax.monitoring.register_event_listener(_note_hit)


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
    init: (run_key) -> the state before the first generation.
    train: (state, pool, run_key) -> (state, trained), the first part of a
      generation; the state is donated, here and below.
    evaluate: (state, trained, env_states, run_key) -> (state, report), the
      second one.
    restart: (state, run_key) -> the state with new members in place of all.
    state: shapes, dtypes and shardings of the state.
    initial: those of what a generation draws.
    training: what `train` waits for, None if it waits for nothing.
    evaluating: what `evaluate` waits for, likewise.
  """

  draw: Any
  init: Callable[[types.Key], State]
  train: Any
  evaluate: Any
  restart: Callable[[State, types.Key], State]
  state: State
  initial: InitialStates
  training: concurrent.futures.Future[Any] | None = None
  evaluating: concurrent.futures.Future[Any] | None = None

  def wait_to_train(self) -> None:
    """Waits until `train` is compiled."""
    if self.training is not None:
      self.training.result()

  def wait_to_evaluate(self, trained: Trained) -> float:
    """Waits for `evaluate` to be compiled; returns the seconds of waiting."""
    if self.evaluating is None or self.evaluating.done():
      return 0.0
    jax.block_until_ready(trained)
    begin = time.monotonic()
    concurrent.futures.wait([self.evaluating])
    return time.monotonic() - begin

  def step(
    self, state: State, run_key: types.Key, generation: int
  ) -> tuple[State, GenerationReport]:
    """Calls all that makes a generation."""
    initial = self.draw(run_key, generation)
    state, trained = self.train(state, initial.pool, run_key)
    return self.evaluate(state, trained, initial.evaluation, run_key)


def make_programs(
  setup: Setup,
  mesh: jax.sharding.Mesh,
  run_key: types.Key | jax.ShapeDtypeStruct,
  cache: ProgramCache | None = None,
) -> Programs:
  """Returns what a run calls, traced as far as the shapes need it."""
  replicated = NamedSharding(mesh, PartitionSpec())
  members = NamedSharding(mesh, PartitionSpec(sharding.AXIS))
  shardings, trained = state_lib.shardings(setup, members, replicated)
  options = compiler_options.of_mesh(mesh)
  # The first agents of a repertoire are evaluated.
  to_init = options.often if setup.map_elites else options.once

  def jitted(
    function: Callable[..., Any],
    options: dict[str, Any],
    out_shardings: types.Tree,
    **more: Any,
  ) -> Any:
    return jax.jit(
      functools.partial(function, setup),
      compiler_options=options,
      out_shardings=out_shardings,
      **more,
    )

  method = generation.method(setup)
  draw_jit = jitted(method.draw, options.once, members, static_argnums=2)
  init_jit = jitted(generation.init, to_init, shardings)
  train_jit = jitted(
    method.train, options.always, (shardings, trained), donate_argnums=0
  )
  evaluate_jit = jitted(
    method.evaluate,
    options.often,
    (shardings, replicated),
    donate_argnums=0,
  )

  shapes = cache.read("shapes") if cache is not None else None
  if shapes is None:
    initial = [
      draw_jit.eval_shape(run_key, np.int32(0), n) for n in setup.num_evaluated
    ]
    shapes = _bare((init_jit.eval_shape(run_key, initial[0]), initial))
    if cache is not None:
      cache.write("shapes", shapes)
  state = _placed(shapes[0], shardings)
  first, later = _placed(shapes[1], members)

  def program(
    name: str,
    lower: Callable[[], jax.stages.Lowered],
    options: dict[str, Any],
  ) -> Program:
    return Program(name, lower, options, list(mesh.devices.flat), cache)

  draws = {
    n: program(
      f"draw_{n}",
      functools.partial(draw_jit.lower, run_key, np.int32(0), n),
      options.once,
    )
    for n in setup.num_evaluated
  }
  draw = _Draw(*(draws[n] for n in setup.num_evaluated))
  init = program("init", lambda: init_jit.lower(run_key, first), to_init)
  return Programs(
    draw=draw,
    init=lambda run_key: init(run_key, draw(run_key, 0)),
    train=program(
      "train",
      lambda: train_jit.lower(state, later.pool, run_key),
      options.always,
    ),
    evaluate=program(
      "evaluate",
      lambda: evaluate_jit.lower(
        *train_jit.eval_shape(state, later.pool, run_key),
        later.evaluation,
        run_key,
      ),
      options.often,
    ),
    restart=jitted(
      generation.restart, options.once, shardings, donate_argnums=0
    ),
    state=state,
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


def _bare(tree: types.Tree) -> types.Tree:
  """Returns shapes and dtypes without the devices on which arrays are."""
  return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), tree)


def _placed(tree: types.Tree, shardings: types.Tree) -> types.Tree:
  """Returns shapes and dtypes of arrays on devices."""
  return jax.tree.map(
    lambda where, part: jax.tree.map(
      lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=where), part
    ),
    shardings,
    tree,
  )
