"""The compiled programs of a run, each compiled once and for its devices."""

import concurrent.futures
import dataclasses
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
from qdrl_haiku.cpu import compiler_options, compiling
from qdrl_haiku.distributed import sharding
from qdrl_haiku.programs.storage import fingerprints
from qdrl_haiku.programs.storage.program_cache import ProgramCache
from qdrl_haiku.training.state import InitialStates, State, Trained, Trainer

_HIT = "/jax/compilation_cache/cache_hits"
_found = threading.local()


@dataclasses.dataclass(eq=False)
class Program:
  """Holds a function that is compiled, or read from a cache, when first called.

  The cache holds machine code, found by name by runs of the same kind, and by a
  digest of the lowered program by all others. So a run that reads it computes
  the same bits as the run that compiled it; found by name, it isn't traced.
  """

  name: str
  lower: Callable[[], jax.stages.Lowered]
  options: Mapping[str, Any]
  devices: Sequence[jax.Device]
  cache: ProgramCache | None = None
  _lowered: jax.stages.Lowered | None = None
  _compiled: jax.stages.Compiled | None = None

  def __post_init__(self) -> None:
    self._compiling = threading.Lock()

  @property
  def is_compiled(self) -> bool:
    """Whether a call need not wait."""
    return self._compiled is not None

  @property
  def is_compiling(self) -> bool:
    """Whether a thread compiles it, or reads or traces it before."""
    return not self.is_compiled and self._compiling.locked()

  def __call__(self, *args: types.Tree) -> types.Tree:
    """Calls it with arguments of the shapes that it was lowered for."""
    return self.compile()(*args)

  def trace(self) -> None:
    """Traces the program, unless its machine code is kept."""
    with self._compiling:
      is_kept = self.cache is not None and self.cache.has(self.name)
      if not (self.is_compiled or is_kept):
        self._lowered = self.lower()

  def compile(self) -> jax.stages.Compiled:
    """Returns the program; threads that ask for it wait for the first one."""
    with self._compiling:
      if self._compiled is None:
        self._compiled = self._by_name() or self._by_code()
        self._lowered = None
      return self._compiled

  def _by_name(self) -> jax.stages.Compiled | None:
    """Reads the program that an earlier run of the same kind cached, if any."""
    code = self.cache.read(self.name) if self.cache is not None else None
    return self._read(code) if code is not None else None

  def _by_code(self) -> jax.stages.Compiled:
    """Reads the cached program of the same code, or compiles and caches it."""
    lowered = self._lowered or self.lower()
    if self.cache is None:
      return self._fresh(lowered)
    # Unused arguments aren't in the code, and are checked all the same.
    code = fingerprints.fingerprint_digest([
      fingerprints.fingerprint_of_compiler(), dict(self.options),
      lowered.as_text(), str(lowered.args_info), str(lowered.out_info)])
    compiled = self._read(code)
    if compiled is None:
      _found.is_hit = False
      compiled = self._fresh(lowered)
      # What jax itself has read from its cache can't be written once more.
      if _found.is_hit or not self._write(code, compiled):
        return compiled
    self.cache.write(self.name, code)
    return compiled

  def _fresh(self, lowered: jax.stages.Lowered) -> jax.stages.Compiled:
    """Compiles the program, lowered before or, if XLA refuses that, anew."""
    first = iter([lowered])
    return compiling.compile_or_plainly(
      lambda: next(first, None) or self.lower())

  def _read(self, code: str) -> jax.stages.Compiled | None:
    assert self.cache is not None
    written = self.cache.read_shared(code)
    if written is None:
      return None
    _prepare_lapack()
    try:
      machine_code, in_tree, out_tree = written
      return serialize_executable.deserialize_and_load(
        machine_code, in_tree, out_tree, execution_devices=self.devices)
    except Exception as error:
      logging.debug("%s can't be taken: %s", self.name, error)
      return None

  def _write(self, code: str, compiled: jax.stages.Compiled) -> bool:
    """Keeps a program that hasn't run; one that has can't be."""
    assert self.cache is not None
    try:
      written = serialize_executable.serialize(compiled)
    except Exception as error:  # Such as one that calls Python.
      logging.debug("%s can't be kept: %s", self.name, error)
      return False
    return self.cache.write_shared(code, written)


@functools.cache
def _prepare_lapack() -> None:
  """Fills in the addresses of LAPACK's functions.

  jax does so when it first lowers a program that calls one of them. Without
  that, a program that was read from the cache would call address 0.
  """
  matrix = jax.ShapeDtypeStruct((1, 1), jnp.float32)
  jax.jit(jnp.linalg.cholesky).lower(matrix)


def _note_hit(event: str, **_: Any) -> None:
  if event == _HIT:
    _found.is_hit = True


jax.monitoring.register_event_listener(_note_hit)


class Programs(NamedTuple):
  """Holds the programs of a run, each compiled when it's first called."""

  # (run_key, generation) -> `InitialStates`. The first program draws those of
  # generation 0, before any training; the second those of all others.
  draws: tuple[Program, Program]
  # (run_key, `InitialStates`) -> the state before the first generation.
  start: Program
  # (state, pool, run_key) -> (state, trained), the first part of a generation;
  # the state is donated, here and below.
  train: Program
  # (state, trained, env_states, run_key) -> (state, report), the second one.
  evaluate: Program
  # (state, run_key) -> the state with new members in place of all.
  restart: Callable[[State, types.Key], State]
  state: State  # Shapes, dtypes and shardings of the state.
  initial: InitialStates  # Those of what a generation draws.

  def draw(self, run_key: types.Key, generation: int) -> InitialStates:
    """Draws the states in which the episodes of a generation begin."""
    # A number of NumPy's is known to all processes.
    return self.draws[generation > 0](run_key, np.int32(generation))

  def init(self, run_key: types.Key) -> State:
    """Makes the state before the first generation."""
    return self.start(run_key, self.draw(run_key, 0))

  def describe_compiling(self) -> str:
    """Says which programs are being compiled, "" if none is."""
    programs = dict.fromkeys(
      (*self.draws, self.start, self.train, self.evaluate))
    names = [x.name.partition("_")[0] for x in programs if x.is_compiling]
    if not names:
      return ""
    number = sum(x.is_compiled for x in programs)
    return (
      f"compiling {', '.join(names)}; {number} of {len(programs)} programs "
      "are ready")

  def wait_to_evaluate(self, trained: Trained) -> float:
    """Waits for `evaluate` to be compiled; returns the seconds of waiting."""
    if self.evaluate.is_compiled:
      return 0.0
    jax.block_until_ready(trained)
    begin = time.monotonic()
    self.evaluate.compile()
    return time.monotonic() - begin

  def begin_to_compile(self) -> None:
    """Starts threads that compile the programs of a generation.

    `train` takes longest of all that a run waits for, so it's traced before
    anything else. `draws[1]` is called just before it, and is compiled next.
    """
    self.train.trace()
    threads = [concurrent.futures.ThreadPoolExecutor(1) for _ in range(2)]
    for program in (self.train, self.draws[1], self.evaluate):
      threads[0].submit(program.compile)
    # XLA compiles in the meantime what trains.
    threads[1].submit(self.evaluate.trace)
    for thread in threads:
      thread.shutdown(wait=False)


def make_programs(
  trainer: Trainer, run_key: types.Key | jax.ShapeDtypeStruct,
  cache: ProgramCache | None = None,
) -> Programs:
  """Returns what a run calls, traced as far as the shapes need it."""
  setup, mesh = trainer.setup, trainer.setup.mesh
  assert mesh is not None
  replicated = NamedSharding(mesh, PartitionSpec())
  members = NamedSharding(mesh, PartitionSpec(sharding.AXIS))
  shardings, trained = jax.tree.map(
    lambda is_shared: members if is_shared else replicated,
    (trainer.shared, Trained(metrics=True, num_updates=True, offspring=False)))
  platform = mesh.devices.flat[0].platform
  options = compiler_options.platform_compiler_options(platform)
  # With a repertoire, `init` also evaluates the first agents.
  to_init = options.often if setup.map_elites else options.once

  def jitted(
    function: Callable[..., types.Tree], options: dict[str, Any],
    out_shardings: types.Tree, **more: Any,
  ) -> Any:
    return jax.jit(
      function, compiler_options=options, out_shardings=out_shardings, **more)

  donates = {"donate_argnums": 0}
  draw = jitted(trainer.draw, options.once, members, static_argnums=2)
  init = jitted(trainer.init, to_init, shardings)
  train = jitted(trainer.train, options.always, (shardings, trained), **donates)
  evaluate = jitted(
    trainer.evaluate, options.often, (shardings, replicated), **donates)
  restart = jitted(trainer.restart, options.once, shardings, **donates)
  zero = np.int32(0)
  numbers = setup.num_evaluated
  shapes = cache.read("shapes") if cache is not None else None
  if shapes is None:
    initial = [draw.eval_shape(run_key, zero, n) for n in numbers]
    # Without the devices on which arrays are.
    shapes = jax.tree.map(
      lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype),
      (init.eval_shape(run_key, initial[0]), initial))
    if cache is not None:
      cache.write("shapes", shapes)
  state = _placed(shapes[0], shardings)
  first, later = _placed(shapes[1], members)

  def lower_evaluate() -> jax.stages.Lowered:
    carried = train.eval_shape(state, later.pool, run_key)
    return evaluate.lower(*carried, later.evaluation, run_key)

  program = functools.partial(
    Program, devices=list(mesh.devices.flat), cache=cache)
  # The same one where both numbers are.
  draws = {
    n: program(
      f"draw_{n}", functools.partial(draw.lower, run_key, zero, n), options.once
    )
    for n in numbers}
  return Programs(
    draws=(draws[numbers[0]], draws[numbers[1]]),
    start=program("init", lambda: init.lower(run_key, first), to_init),
    train=program(
      "train", lambda: train.lower(state, later.pool, run_key), options.always),
    evaluate=program("evaluate", lower_evaluate, options.often),
    restart=restart, state=state, initial=later)


def _placed(tree: types.Tree, shardings: types.Tree) -> types.Tree:
  """Returns shapes and dtypes of arrays on devices."""
  return jax.tree.map(
    lambda where, part: jax.tree.map(
      lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=where), part),
    shardings, tree)
