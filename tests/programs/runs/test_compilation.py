"""Tests of compiled programs, and of when they are compiled."""

import concurrent.futures
import threading
import time

import jax
import numpy as np

from qdrl_haiku.programs.runs.compilation import Program, Programs

_KEY = jax.random.key(0)


def _lower():
  return jax.jit(lambda key: jax.random.normal(key, (4,))).lower(_KEY)


def test_threads_that_ask_at_once_trace_and_compile_once():
  lowered = []

  def lower():
    lowered.append(1)
    time.sleep(0.05)
    return _lower()

  program = Program("noise", lower)
  with concurrent.futures.ThreadPoolExecutor(3) as threads:
    threads.submit(program.trace)
    first, second = threads.map(lambda _: program.compile(), range(2))
  program.trace()
  assert first is second and len(lowered) == 1
  np.testing.assert_array_equal(program(_KEY), first(_KEY))


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
    return _lower()

  parts = {
    name: Program(name, lower)
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
