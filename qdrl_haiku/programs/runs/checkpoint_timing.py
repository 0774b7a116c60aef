"""Decides when a run writes checkpoints."""

import contextlib
import time
from collections.abc import Callable, Iterator

from qdrl_haiku.distributed import hosts
from qdrl_haiku.programs.runs.progress import say

# Waiting 19 times as long as a checkpoint takes makes it 5 % of the time.
_PATIENCE = 19
_LOSS = "a kill loses at most what came since."


class CheckpointPlan:
  """Says after which generations of a run a checkpoint is written.

  Without an interval, one follows the first generation, then each that ends at
  least `_PATIENCE` write times after the last, by the first process's clock.
  """

  def __init__(
    self, interval: int | None, clock: Callable[[], float] = time.monotonic
  ) -> None:
    """Begins a plan, of which the first checkpoint is due at once."""
    self._interval = interval
    self._clock = clock
    self._next = -float("inf")
    if interval is not None:
      often = "generation" if interval == 1 else f"{interval} generations"
      say(f"A checkpoint is written every {often}; {_LOSS}")

  def is_due(self, generation: int) -> bool:
    """Decides whether a checkpoint is to be written; all processes ask."""
    if self._interval is not None:
      return generation % self._interval == 0
    return hosts.as_first_host(self._clock() >= self._next)

  @contextlib.contextmanager
  def writing(self) -> Iterator[None]:
    """Measures what is done inside, which is to write a checkpoint."""
    start = self._clock()
    yield
    seconds = self._clock() - start
    is_first, wait = self._next < 0, _PATIENCE * seconds
    self._next = start + seconds + wait
    if is_first and self._interval is None:
      say(
        f"A checkpoint takes {seconds:.1f} s, so one follows each generation "
        f"that ends {wait:.0f} s or more after the last one; {_LOSS}")
