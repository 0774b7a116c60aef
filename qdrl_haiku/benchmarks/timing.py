"""Repeats measurements, and takes their median."""

import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import jax

# What a measurement may take, compilation aside.
_SECONDS = 40.0


def affordable(seconds_each: float, most: int) -> int:
  """Decides how many repetitions there will be, and says so."""
  number = max(1, min(most, int(_SECONDS / max(seconds_each, 1e-9))))
  # What is over at once needs no announcement.
  if (number - 1) * seconds_each > 5:
    print(
      f"measuring {number} of {most} repetitions, "
      f"{number * seconds_each:.0f} s in all",
      file=sys.stderr,
      flush=True,
    )
  return number


def median_seconds(
  call: Callable[[Any], Any], state: Any, repetitions: int
) -> float:
  """Measures the median time of calls that go on from one another."""
  state = jax.block_until_ready(call(state))
  seconds: list[float] = []
  number = 1
  while len(seconds) < number:
    begin = time.monotonic()
    state = jax.block_until_ready(call(state))
    seconds.append(time.monotonic() - begin)
    if len(seconds) == 1:
      number = affordable(seconds[0], repetitions)
  return statistics.median(seconds)
