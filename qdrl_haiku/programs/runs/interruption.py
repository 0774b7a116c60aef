"""Leaving a run when told to, so that it can be resumed without loss."""

import contextlib
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator

INTERRUPTED = 75
"""Exit code of an interrupted run that can be resumed: EX_TEMPFAIL."""

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupted(Exception):
  """A run was told to stop, and has stopped where it can be resumed."""


class Interruption:
  """Whether the run was told to stop."""

  # Whether there is something to finish; if not, a signal ends the process.
  can_wait = False
  requested = False  # Whether a signal has come.


@contextlib.contextmanager
def interruptible() -> Iterator[Interruption]:
  """Notes SIGTERM and Ctrl-C instead of dying; the second one kills at once.

  Python calls no handler during a long call into XLA, such as a generation. So
  the interpreter writes signals to a socket as soon as they come, and a thread
  reads them from it. Outside the main thread, where Python handles no signals,
  nothing is changed.
  """
  interruption = Interruption()
  if threading.current_thread() is not threading.main_thread():
    yield interruption
    return
  reader, writer = socket.socketpair()
  writer.setblocking(False)
  watcher = threading.Thread(
    target=_watch, args=(reader, interruption), daemon=True)
  # A handler in Python must be there, or the interpreter notes no signal.
  handlers = {x: signal.signal(x, lambda *_: None) for x in _SIGNALS}
  wakeup = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
  watcher.start()
  try:
    yield interruption
  finally:
    signal.set_wakeup_fd(wakeup)
    for number, handler in handlers.items():
      signal.signal(number, handler)
    writer.close()
    watcher.join()
    reader.close()


def _watch(reader: socket.socket, interruption: Interruption) -> None:
  """Reads signals until the other end is closed."""
  while received := reader.recv(1):
    if received[0] not in _SIGNALS:
      continue
    if interruption.requested:
      os._exit(128 + received[0])
    name = signal.Signals(received[0]).name
    if not interruption.can_wait:
      _say(f"{name}: leaving; there is nothing to finish.")
      os._exit(INTERRUPTED)
    interruption.requested = True
    _say(
      f"{name}: the run stops after this generation, with a checkpoint; once "
      "more to leave at once.")


def _say(message: str) -> None:
  print(f"\n{message}", file=sys.stderr, flush=True)
