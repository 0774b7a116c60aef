"""Decides when a run writes checkpoints."""

import contextlib
import time
from collections.abc import Callable, Iterator

from qdrl_haiku.distributed import hosts

# A checkpoint that follows 19 times what it takes is a twentieth of the time.
_PATIENCE = 19


def is_affordable(seconds_since_last: float, seconds_of_last: float) -> bool:
  """Decides whether checkpoints stay within a twentieth of a run's time."""
  return seconds_since_last >= _PATIENCE * seconds_of_last


class CheckpointPlan:
  """Says after which generations of a run a checkpoint is written.

  Where no number is given, after the first one, and from then on whenever that
  is affordable. The first of several processes decides by its clock for all.
  """

  def __init__(
    self,
    interval: int | None,
    say: Callable[[str], None],
    clock: Callable[[], float] = time.monotonic,
  ) -> None:
    """Begins a plan."""
    self._interval = interval
    self._say = say
    self._clock = clock
    self._seconds: float | None = None
    self._end = 0.0
    if interval is not None:
      often = "generation" if interval == 1 else f"{interval} generations"
      say(
        f"A checkpoint is written every {often}; a kill loses at most what "
        "came since."
      )

  def is_due(self, generation: int) -> bool:
    """Decides whether a checkpoint is to be written; all processes ask."""
    if self._interval is not None:
      return generation % self._interval == 0
    return hosts.as_first(
      self._seconds is None
      or is_affordable(self._clock() - self._end, self._seconds)
    )

  @contextlib.contextmanager
  def writing(self) -> Iterator[None]:
    """Measures what is done inside, which is to write a checkpoint."""
    start = self._clock()
    yield
    self._end = self._clock()
    is_new = self._seconds is None
    self._seconds = self._end - start
    if is_new and self._interval is None:
      wait = _PATIENCE * self._seconds
      self._say(
        f"A checkpoint takes {self._seconds:.1f} s, so one follows each "
        f"generation that ends {wait:.0f} s or more after the last one; a kill "
        "loses at most what came since."
      )
