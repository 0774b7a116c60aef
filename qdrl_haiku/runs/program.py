"""One compiled program, which may have been compiled by an earlier run."""

import functools
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from absl import logging
from jax.experimental import serialize_executable

from qdrl_haiku.storage import fingerprints
from qdrl_haiku.storage.program_cache import ProgramCache

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

  def __call__(self, *args: Any) -> Any:
    """Calls it with arguments of the shapes that it was lowered for."""
    return self.compile()(*args)

  def trace(self) -> None:
    """Does what compiling begins with, unless it's kept."""
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
