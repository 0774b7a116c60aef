"""Tests of compiled programs, which an earlier run may have compiled."""

import concurrent.futures
import functools
import subprocess
import sys
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import serialize_executable
from jax.experimental.compilation_cache import compilation_cache

from qdrl_haiku.runs.programs import Program, Programs, compile_generation
from qdrl_haiku.storage.program_cache import ProgramCache
from qdrl_haiku.training.members import InitialStates

_KEY = jax.random.key(0)
_ON = jax.devices()[:1]


class _Counted:
  """Lowers a function, and counts how often."""

  def __init__(self, function):
    self._jit = jax.jit(function)
    self.count = 0

  def __call__(self):
    self.count += 1
    return self._jit.lower(_KEY)


def _noise(size):
  """Returns a function that no other test has compiled in this process."""

  def function(key):
    return {"noise": jnp.sort(jax.random.normal(key, (size,))), "key": key}

  return function


@pytest.fixture(autouse=True)
def _no_cache():
  """Compiles anew: what jax has read from its cache isn't kept."""
  before = jax.config.values["jax_compilation_cache_dir"]
  jax.config.update("jax_compilation_cache_dir", None)
  compilation_cache.reset_cache()
  yield
  jax.config.update("jax_compilation_cache_dir", before)
  compilation_cache.reset_cache()


def test_threads_that_need_it_compile_it_once():
  lower = _Counted(_noise(4))
  program = Program("noise", lower, {}, _ON)
  with concurrent.futures.ThreadPoolExecutor(3) as threads:
    threads.submit(program.trace)
    compiled = list(threads.map(lambda _: program.compile(), range(2)))
  assert compiled[0] is compiled[1]
  assert lower.count == 1


def test_a_later_run_of_the_same_kind_traces_nothing(tmp_path):
  first, later = _Counted(_noise(5)), _Counted(_noise(5))
  kept = ProgramCache(tmp_path, "kind")
  expected = Program("noise", first, {}, _ON, kept)(_KEY)
  program = Program("noise", later, {}, _ON, kept)
  program.trace()
  found = program(_KEY)
  assert (first.count, later.count) == (1, 0)
  np.testing.assert_array_equal(found["noise"], expected["noise"])
  assert jax.random.key_data(found["key"]).tolist() == [0, 0]


def test_unused_arguments_and_options_tell_programs_apart(tmp_path):
  lower = jax.jit(lambda used, unused: used + 1).lower
  for size, options in ((2, {}), (3, {}), (3, {"level": 0})):
    args = jnp.zeros(7), jnp.zeros(size)
    kept = ProgramCache(tmp_path, f"kind of {size} {options}")
    lower_it = functools.partial(lower, *args)
    program = Program("sum", lower_it, options, _ON, kept)
    np.testing.assert_array_equal(program(*args), np.ones(7))
  assert len(_programs(tmp_path)) == 3


def _programs(folder):
  """Files of programs; those of a start have a name behind their key."""
  return [x for x in folder.iterdir() if "-" not in x.name]


@pytest.mark.parametrize(("kind", "counts"), [("another", 1), (None, 2)])
def test_a_run_of_another_kind_with_the_same_code_compiles_nothing(
  kind, counts, tmp_path, monkeypatch
):
  kept = ProgramCache(tmp_path, "kind")
  size = 11 + counts
  expected = Program("noise", _Counted(_noise(size)), {}, _ON, kept)(_KEY)
  counted = _Counted(_noise(size))
  monkeypatch.setattr(jax.stages.Lowered, "compile", None)
  for _ in range(2):  # Then it's known by its kind too, unless it has none.
    program = Program("noise", counted, {}, _ON, ProgramCache(tmp_path, kind))
    program.trace()
    np.testing.assert_array_equal(program(_KEY)["noise"], expected["noise"])
  assert counted.count == counts


@pytest.mark.parametrize("position", [0, 1000, -1])
def test_a_damaged_program_is_deleted_and_compiled_again(
  tmp_path, monkeypatch, position
):
  kept, counted = ProgramCache(tmp_path, "kind"), _Counted(_noise(9))
  expected = Program("noise", _Counted(_noise(9)), {}, _ON, kept)(_KEY)
  (path,) = _programs(tmp_path)
  damaged = bytearray(path.read_bytes())
  damaged[position] ^= 1
  path.write_bytes(damaged)
  was_there = []

  def lower():
    was_there.append(path.exists())
    return counted()

  load = serialize_executable.deserialize_and_load
  monkeypatch.setattr(serialize_executable, "deserialize_and_load", None)
  again = Program("noise", lower, {}, _ON, kept)(_KEY)
  assert was_there == [False]
  np.testing.assert_array_equal(again["noise"], expected["noise"])
  # What was written in its place is whole.
  monkeypatch.setattr(serialize_executable, "deserialize_and_load", load)
  Program("noise", lower, {}, _ON, kept)(_KEY)
  assert counted.count == 1


def test_a_program_that_calls_python_is_not_kept(tmp_path):
  def function(key):
    return jax.experimental.io_callback(
      lambda: np.float32(1), jax.ShapeDtypeStruct((), jnp.float32)
    )

  kept = ProgramCache(tmp_path, "kind")
  assert Program("call", _Counted(function), {}, _ON, kept)(_KEY) == 1
  assert not kept.has("call")


def test_what_jax_has_read_from_its_cache_is_not_kept(tmp_path):
  jax.config.update("jax_compilation_cache_dir", str(tmp_path / "jax"))
  compilation_cache.reset_cache()
  before = jax.config.values["jax_persistent_cache_min_compile_time_secs"]
  jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
  Program("noise", _Counted(_noise(10)), {}, _ON)(_KEY)
  kept = ProgramCache(tmp_path / "kept", "kind")
  jax.clear_caches()
  Program("noise", _Counted(_noise(10)), {}, _ON, kept)(_KEY)
  jax.config.update("jax_persistent_cache_min_compile_time_secs", before)
  assert not kept.has("noise")


_OF_A_PROCESS = """
import pathlib
import sys

import jax
import jax.numpy as jnp
from qdrl_haiku.runs.programs import Program, Programs, compile_generation
from qdrl_haiku.storage.program_cache import ProgramCache

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
      command, check=True, capture_output=True, text=True
    ).stdout.split()
    for _ in range(2)
  ]
  assert printed == [["lowered", "2.0"], ["2.0"]]


def _made(evaluating, training=None):
  return Programs(
    draw=lambda _, generation: InitialStates(generation, 3 * generation),
    init=None,
    train=lambda population, pool, _: (population + pool, 10.0),
    evaluate=lambda population, trained, begin, _: (
      2 * population, trained + begin
    ),
    restart=None,
    state=None,
    initial=None,
    training=training,
    evaluating=evaluating,
  )


def test_a_generation_draws_trains_and_then_evaluates():
  population, report = _made(None).step(3, None, 5)
  assert (population, report) == (16, 25.0)


def test_training_waits_for_what_is_compiled_meanwhile_and_says_how_long():
  evaluating = concurrent.futures.Future()
  timer = threading.Timer(0.2, evaluating.set_result, [None])
  timer.start()
  waited = _made(evaluating).wait_to_evaluate(jnp.zeros(()))
  assert evaluating.done() and 0.0 < waited < 10.0
  # Nothing is waited for once all is compiled.
  assert _made(evaluating).wait_to_evaluate(jnp.zeros(())) == 0.0


def test_what_fails_to_compile_is_told_before_training_begins():
  training = concurrent.futures.Future()
  training.set_exception(MemoryError("too little of it"))
  with pytest.raises(MemoryError, match="too little"):
    _made(None, training).wait_to_train()


class _Part:
  """Notes what is done with it."""

  def __init__(self, name, calls):
    self._name = name
    self._calls = calls

  def trace(self):
    self._calls.append(f"trace {self._name}")

  def compile(self):
    self._calls.append(f"compile {self._name}")


def test_what_is_called_first_is_compiled_first():
  calls = []
  parts = {x: _Part(x, calls) for x in ("draw", "train", "evaluate")}
  made = compile_generation(_made(None)._replace(**parts))
  made.evaluating.result()
  assert calls[0] == "trace train"
  compiled = [x for x in calls if x.startswith("compile")]
  assert compiled == ["compile train", "compile draw", "compile evaluate"]
