"""The compiled programs of a run, each compiled once and for its devices."""

import concurrent.futures
import dataclasses
import functools
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np
from jax.sharding import NamedSharding

from qdrl_haiku import platform, types
from qdrl_haiku.distributed import sharding
from qdrl_haiku.training.state import InitialStates, State, Trained, Trainer


@dataclasses.dataclass(eq=False)
class Program:
  """Holds a function that is compiled when first called, or before."""

  name: str
  lower: Callable[[], jax.stages.Lowered]
  _lowered: jax.stages.Lowered | None = None
  _compiled: jax.stages.Compiled | None = None
  _compiling: threading.Lock = dataclasses.field(default_factory=threading.Lock)

  @property
  def is_compiled(self) -> bool:
    """Whether a call need not wait."""
    return self._compiled is not None

  @property
  def is_compiling(self) -> bool:
    """Whether a thread is compiling it, or reading it from a cache."""
    return not self.is_compiled and self._compiling.locked()

  def __call__(self, *args: types.Tree) -> types.Tree:
    """Calls it with arguments of the shapes that it was lowered for."""
    return self.compile()(*args)

  def trace(self) -> None:
    """Traces the program, unless it is compiled."""
    with self._compiling:
      if not self.is_compiled:
        self._lowered = self.lower()

  def compile(self) -> jax.stages.Compiled:
    """Returns the program; threads that ask for it wait for the first one."""
    with self._compiling:
      if self._compiled is None:
        # Lowered before or, if XLA refuses that, anew.
        first = iter([self._lowered or self.lower()])
        self._compiled = platform.compile_program(
          lambda: next(first, None) or self.lower())
        self._lowered = None
      return self._compiled


class Programs(NamedTuple):
  """Holds the functions of a `Trainer`, compiled when they're first called.

  The states that they are given are donated.
  """

  # The first draws what generation 0 begins with, the second that of others.
  draws: tuple[Program, Program]
  start: Program  # `Trainer.init`.
  train: Program
  evaluate: Program
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
    """Names the programs that are being compiled; "" if none is."""
    programs = dict.fromkeys(
      (*self.draws, self.start, self.train, self.evaluate))
    names = [x.name.partition("_")[0] for x in programs if x.is_compiling]
    ready = f"{sum(x.is_compiled for x in programs)} of {len(programs)}"
    if not names:
      return ""
    return f"compiling {', '.join(names)}; {ready} programs are ready"

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
  trainer: Trainer, run_key: types.Key | jax.ShapeDtypeStruct
) -> Programs:
  """Returns the programs that a run calls, not yet compiled."""
  setup, mesh = trainer.setup, trainer.setup.mesh
  assert mesh is not None
  replicated, members = (
    NamedSharding(mesh, x) for x in (sharding.REPLICATED, sharding.SHARDED))
  shardings, trained = jax.tree.map(
    lambda is_shared: members if is_shared else replicated,
    (trainer.shared, Trained(metrics=True, num_updates=True, offspring=False)))
  options = platform.compiler_options(mesh.devices.flat[0].platform)
  jit = functools.partial(jax.jit, out_shardings=shardings)
  draw = jit(
    trainer.draw, static_argnums=2, out_shardings=members,
    compiler_options=options.once)
  # With a repertoire, `init` also evaluates the first agents.
  init = jit(trainer.init, compiler_options=(
    options.often if setup.map_elites else options.once))
  train = jit(
    trainer.train, donate_argnums=0, out_shardings=(shardings, trained),
    compiler_options=options.always)
  evaluate = jit(
    trainer.evaluate, donate_argnums=0, out_shardings=(shardings, replicated),
    compiler_options=options.often)
  restart = jit(
    trainer.restart, donate_argnums=0, compiler_options=options.once)
  zero = np.int32(0)
  numbers = setup.sizes.first, setup.sizes.evaluated
  first, later = (draw.eval_shape(run_key, zero, n) for n in numbers)
  state = init.eval_shape(run_key, first)

  def lower_evaluate() -> jax.stages.Lowered:
    carried = train.eval_shape(state, later.pool, run_key)
    return evaluate.lower(*carried, later.evaluation, run_key)

  # The same one where both numbers are.
  draws = {
    n: Program(f"draw_{n}", functools.partial(draw.lower, run_key, zero, n))
    for n in numbers}
  return Programs(
    draws=(draws[numbers[0]], draws[numbers[1]]),
    start=Program("init", lambda: init.lower(run_key, first)),
    train=Program("train", lambda: train.lower(state, later.pool, run_key)),
    evaluate=Program("evaluate", lower_evaluate),
    restart=restart, state=state, initial=later)
