"""Tests of compiled programs, which an earlier run may have compiled."""

import functools
import subprocess
import sys
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import serialize_executable
from jax.experimental.compilation_cache import compilation_cache

from qdrl_haiku.programs.runs.compilation import Program, Programs
from qdrl_haiku.programs.storage.program_cache import ProgramCache

_KEY = jax.random.key(0)
_ON = jax.devices()[:1]


class _Counted:
  """Lowers a function of a size that no other test compiles, and counts."""

  def __init__(self, size):
    self._jit = jax.jit(
      lambda key: {"noise": jnp.sort(jax.random.normal(key, (size,)))})
    self.count = 0

  def __call__(self):
    self.count += 1
    return self._jit.lower(_KEY)


@pytest.fixture(autouse=True)
def _no_cache():
  """Compiles anew: what jax has read from its cache isn't kept."""
  before = jax.config.values["jax_compilation_cache_dir"]
  jax.config.update("jax_compilation_cache_dir", None)
  compilation_cache.reset_cache()
  yield
  jax.config.update("jax_compilation_cache_dir", before)
  compilation_cache.reset_cache()


def _program(lower, cache=None, options=()):
  return Program("noise", lower, dict(options), _ON, cache)


@pytest.mark.parametrize(("kind", "count"), [("kind", 0), ("another", 1)])
def test_the_same_code_compiles_once(kind, count, tmp_path, monkeypatch):
  lower = _Counted(5 + count)
  expected = _program(lower, ProgramCache(tmp_path, "kind"))(_KEY)
  monkeypatch.setattr(jax.stages.Lowered, "compile", None)
  lower.count = 0
  for _ in range(2):  # One of the same kind doesn't trace either.
    program = _program(lower, ProgramCache(tmp_path, kind))
    program.trace()
    np.testing.assert_array_equal(program(_KEY)["noise"], expected["noise"])
  assert lower.count == count


def test_unused_arguments_and_options_tell_programs_apart(tmp_path):
  lower = jax.jit(lambda used, unused: used + 1).lower
  for size, options in ((2, {}), (3, {}), (3, {"level": 0})):
    args = jnp.zeros(7), jnp.zeros(size)
    kept = ProgramCache(tmp_path, f"kind of {size} {options}")
    program = _program(functools.partial(lower, *args), kept, options)
    np.testing.assert_array_equal(program(*args), np.ones(7))
  assert len(_programs(tmp_path)) == 3


def _programs(folder):
  """Files of programs; those of a start have a name behind their key."""
  return [x for x in folder.iterdir() if "-" not in x.name]


def test_a_damaged_program_is_compiled_again(tmp_path, monkeypatch):
  kept, lower = ProgramCache(tmp_path, "kind"), _Counted(9)
  expected = _program(_Counted(9), kept)(_KEY)
  (path,) = _programs(tmp_path)
  damaged = bytearray(path.read_bytes())
  damaged[1000] ^= 1
  path.write_bytes(damaged)
  with monkeypatch.context() as patch:
    patch.setattr(serialize_executable, "deserialize_and_load", None)
    again = _program(lower, kept)(_KEY)
  np.testing.assert_array_equal(again["noise"], expected["noise"])
  # What was written in its place is whole.
  _program(lower, kept)(_KEY)
  assert lower.count == 1


def test_what_can_not_be_written_whole_is_not_kept(tmp_path):
  kept = ProgramCache(tmp_path / "kept", "kind")

  def calls_python(key):
    return jax.experimental.io_callback(
      lambda: np.float32(1), jax.ShapeDtypeStruct((), jnp.float32))

  lower = functools.partial(jax.jit(calls_python).lower, _KEY)
  assert _program(lower, kept)(_KEY) == 1
  # Nor is what jax has read from its own cache.
  name = "jax_persistent_cache_min_compile_time_secs"
  before = jax.config.values[name]
  jax.config.update(name, 0.0)
  jax.config.update("jax_compilation_cache_dir", str(tmp_path / "jax"))
  compilation_cache.reset_cache()
  for cache in (None, kept):
    jax.clear_caches()
    _program(_Counted(10), cache)(_KEY)
  jax.config.update(name, before)
  assert not kept.has("noise")


_OF_A_PROCESS = """
import pathlib
import sys

import jax
import jax.numpy as jnp
from qdrl_haiku.programs.runs.compilation import Program
from qdrl_haiku.programs.storage.program_cache import ProgramCache


def lower():
  print("lowered")
  return jax.jit(jnp.linalg.cholesky).lower(jnp.eye(3))

kept = ProgramCache(pathlib.Path(sys.argv[1]), "kind")
print(Program("root", lower, {}, jax.devices()[:1], kept)(4 * jnp.eye(3))[0, 0])
"""


@pytest.mark.slow
def test_another_process_runs_a_program_that_calls_a_library(tmp_path):
  command = [sys.executable, "-c", _OF_A_PROCESS, str(tmp_path)]
  printed = [
    subprocess.run(
      command, check=True, capture_output=True, text=True).stdout.split()
    for _ in range(2)]
  assert printed == [["lowered", "2.0"], ["2.0"]]


class _Part:
  """A program that notes what is done with it."""

  def __init__(self, name, calls):
    self.trace = lambda: calls.append(f"trace {name}")
    self.compile = lambda: calls.append(f"compile {name}")


def test_what_is_called_first_is_compiled_first():
  calls = []
  draw, train, evaluate = (_Part(x, calls) for x in ("draw", "train", "last"))
  none = (None, None, None)
  made = Programs((None, draw), None, train, evaluate, *none)
  made.begin_to_compile()
  deadline = time.monotonic() + 10
  while len(calls) < 5 and time.monotonic() < deadline:
    time.sleep(0.01)
  assert calls[0] == "trace train"
  compiled = [x for x in calls if x.startswith("compile")]
  assert compiled == ["compile train", "compile draw", "compile last"]


def test_what_is_being_compiled_is_told():
  go_on, begun = threading.Event(), threading.Event()

  def lower():
    begun.set()
    go_on.wait(10)
    return _Counted(4)()

  parts = {
    name: Program(name, lower, {}, _ON)
    for name in ("draw_2", "init", "train", "evaluate")}
  draw, *others = parts.values()
  made = Programs((draw, draw), *others, None, None, None)
  assert made.describe_compiling() == ""
  thread = threading.Thread(target=parts["draw_2"].compile)
  thread.start()
  begun.wait(10)
  assert made.describe_compiling() == (
    "compiling draw; 0 of 4 programs are ready")
  go_on.set()
  thread.join()
  assert made.describe_compiling() == ""
  go_on.clear()
  begun.clear()
  threads = [
    threading.Thread(target=parts[x].compile) for x in ("init", "train")]
  for thread in threads:
    thread.start()
  while not all(parts[x].is_compiling for x in ("init", "train")):
    time.sleep(0.01)
  assert made.describe_compiling() == (
    "compiling init, train; 1 of 4 programs are ready")
  go_on.set()
  for thread in threads:
    thread.join()
