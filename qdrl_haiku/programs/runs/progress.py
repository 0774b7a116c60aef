"""Prints a run's progress, a line per generation."""

import contextlib
import math
import threading
import time
from collections.abc import Callable, Iterator

from absl import logging

from qdrl_haiku.distributed import hosts

_SECONDS = 20  # From one line about a wait to the next.


class Progress:
  """Shows how far a run is."""

  def __init__(self, num_generations: int, done: int) -> None:
    """Starts the clock."""
    self._num_generations = num_generations
    self._first = done
    self._start = time.monotonic()

  def show(self, row: dict[str, float | int], returns: str) -> None:
    """Shows one generation."""
    done = int(row["generation"])
    elapsed = time.monotonic() - self._start
    left = elapsed / (done - self._first) * (self._num_generations - done)
    say(
      f"generation {done}/{self._num_generations}  step {row['step']}  "
      f"{returns}  {row['training/env_steps_per_second']:.0f} steps/s  "
      f"{math.ceil(left)} s left")

  def wait(self, seconds: float) -> None:
    """Leaves a wait that won't recur, as to compile, out of the time left."""
    self._start += seconds


@contextlib.contextmanager
def progress_of_waiting(describe: Callable[[], str]) -> Iterator[None]:
  """Prints every twenty seconds what is waited for, unless that is ""."""
  is_over, start = threading.Event(), time.monotonic()

  def tick() -> None:
    while not is_over.wait(_SECONDS):
      if text := describe():
        say(f"{text}, {time.monotonic() - start:.0f} s so far")

  ticker = threading.Thread(target=tick, daemon=True)
  ticker.start()
  try:
    yield
  finally:
    is_over.set()
    # Or it could be the last to hold the programs when the process ends, which
    # jaxlib can't delete then but by aborting.
    ticker.join()


@contextlib.contextmanager
def progress_without(what: str) -> Iterator[None]:
  """Says in one line why there is no such thing, if an error comes inside.

  It's for what a run can do without, such as pictures.

  Args:
    what: is made inside the `with`, such as "picture of the repertoire".
  """
  try:
    yield
  except Exception as error:
    logging.warning("no %s: %s", what, " ".join(str(error).split()))


def say(message: str) -> None:
  """Prints a line, in the first of several processes."""
  if hosts.is_first_host():
    print(message, flush=True)
