"""How often to measure, and the median of what was measured."""

import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import jax

# What a measurement may take, compilation aside.
_SECONDS = 40.0


def affordable(seconds_each: float, most: int) -> int:
  """Decides how many repetitions there will be, and says so.

  Args:
    seconds_each: what the first of them took.
    most: how many are wanted, >= 1.

  Returns:
    As many as fit into a minute, at least the first.
  """
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
  """Measures the median time of calls that go on from one another.

  Args:
    call: takes a state to the next one.
    state: the first.
    repetitions: how many calls are wanted, >= 1, after a first that may
      compile; as many of them are made as a minute has room for.

  Returns:
    Seconds.
  """
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
