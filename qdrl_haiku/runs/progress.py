"""Prints a run's progress: a line per generation, or a bar."""

import math
import sys
import time

from qdrl_haiku.distributed import hosts


class Progress:
  """Shows how far a run is, on standard output.

  On a terminal the latest line ends in a bar that the next one replaces;
  elsewhere each generation is a line of its own. Of several processes the
  first alone shows it.
  """

  _BAR_WIDTH = 20

  def __init__(self, num_generations: int, done: int) -> None:
    """Starts the clock."""
    self._num_generations = num_generations
    self._first = done
    self._start = time.monotonic()
    self._is_terminal = sys.stdout.isatty()

  def show(self, row: dict[str, float | int], returns: str) -> None:
    """Shows one generation."""
    if not hosts.is_first_host():
      return
    done = int(row["generation"])
    elapsed = time.monotonic() - self._start
    left = elapsed / (done - self._first) * (self._num_generations - done)
    line = (
      f"generation {done}/{self._num_generations}  step {row['step']}  "
      f"{returns}  "
      f"{row['training/env_steps_per_second']:.0f} steps/s  "
      f"{math.ceil(left)} s left"
    )
    if not self._is_terminal:
      print(line, flush=True)
      return
    filled = self._BAR_WIDTH * done // self._num_generations
    bar = "#" * filled + "." * (self._BAR_WIDTH - filled)
    print(f"\r\033[K{line} [{bar}]", end="", flush=True)

  def wait(self, seconds: float) -> None:
    """Leaves a wait, which isn't to come again, out of what is expected."""
    self._start += seconds

  def say(self, message: str) -> None:
    """Prints a message on a line of its own."""
    if hosts.is_first_host():
      print(f"\r\033[K{message}" if self._is_terminal else message, flush=True)

  def close(self) -> None:
    """Leaves the last bar on the terminal."""
    if self._is_terminal and hosts.is_first_host():
      print(flush=True)
