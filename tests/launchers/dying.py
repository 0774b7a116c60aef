"""Runs a launcher to which something happens at one of its file operations.

python tests/launchers/dying.py FOLDER WHAT COUNT DELAY launcher.py --flags

It happens DELAY seconds after the COUNT-th time that Python opened, renamed,
made or removed something in FOLDER; never, if COUNT is 0. If FOLDER is -, it
happens when the COUNT-th generation of the run has been shown, which is the
last thing that is done in it. WHAT is a signal, or FULL: from then on no file
can hold more than a few bytes. The number of file operations is written to
standard error at the end.
"""

import os
import resource
import runpy
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import TextIO

_OPERATIONS = ("open", "os.rename", "os.mkdir", "os.remove", "os.rmdir")


class _Watched:
  """Standard output, on which something happens after a line."""

  def __init__(self, stream: TextIO, start: str, happen: Callable[[], None]):
    self._stream, self._start, self._happen = stream, start, happen

  def __getattr__(self, name: str) -> object:
    return getattr(self._stream, name)

  def write(self, text: str) -> None:
    self._stream.write(text)
    if text.startswith(self._start):
      self._happen()


def main() -> None:
  """Runs the launcher."""
  folder, name, count, delay = sys.argv[1:5]
  last, seconds = int(count), float(delay)
  seen = 0

  def happen() -> None:
    time.sleep(seconds)
    if name == "FULL":
      resource.setrlimit(resource.RLIMIT_FSIZE, (64, resource.RLIM_INFINITY))
    else:
      os.kill(os.getpid(), signal.Signals[name])

  def note(event: str, arguments: tuple[object, ...]) -> None:
    nonlocal seen
    if event not in _OPERATIONS or not str(arguments[0]).startswith(folder):
      return
    seen += 1
    if seen != last:
      return
    if seconds:
      threading.Thread(target=happen, daemon=True).start()
    else:
      happen()

  if folder == "-":
    sys.stdout = _Watched(sys.stdout, f"generation {last}/", happen)
  else:
    sys.addaudithook(note)
  sys.argv = sys.argv[5:]
  sys.path[0] = os.path.dirname(os.path.abspath(sys.argv[0]))
  try:
    runpy.run_path(sys.argv[0], run_name="__main__")
  finally:
    print(f"operations: {seen}", file=sys.stderr)


if __name__ == "__main__":
  main()
