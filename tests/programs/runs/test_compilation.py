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


def test_what_is_being_compiled_is_told():
  go_on, begun = threading.Event(), threading.Event()

  def lower():
    begun.set()
    go_on.wait(10)
    return _lower()

  draw, *others = (
    Program(x, lower) for x in ("draw_2", "init", "train", "evaluate"))
  made = Programs((draw, draw), *others, None, None, None)
  assert made.describe_compiling() == ""
  thread = threading.Thread(target=draw.compile)
  thread.start()
  begun.wait(10)
  assert made.describe_compiling() == (
    "compiling draw; 0 of 4 programs are ready")
  go_on.set()
  thread.join()
  assert made.describe_compiling() == "" and draw.is_compiled
