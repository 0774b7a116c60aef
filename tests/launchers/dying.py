"""Runs a launcher that gets a signal at a chosen one of its file operations.

python tests/launchers/dying.py LOGDIR SIGNAL COUNT DELAY launcher.py --flags

The signal comes DELAY seconds after the COUNT-th time that Python opened,
renamed, made or removed something in LOGDIR; never, if COUNT is 0. The number
of such operations is written to standard error at the end.
"""

import os
import runpy
import signal
import sys
import threading
import time

_OPERATIONS = ("open", "os.rename", "os.mkdir", "os.remove", "os.rmdir")


def main() -> None:
  """Runs the launcher."""
  logdir, name, count, delay = sys.argv[1:5]
  number, last, seconds = signal.Signals[name], int(count), float(delay)
  seen = 0

  def die() -> None:
    time.sleep(seconds)
    os.kill(os.getpid(), number)

  def note(event: str, arguments: tuple[object, ...]) -> None:
    nonlocal seen
    if event not in _OPERATIONS or not str(arguments[0]).startswith(logdir):
      return
    seen += 1
    if seen != last:
      return
    if seconds:
      threading.Thread(target=die, daemon=True).start()
    else:
      os.kill(os.getpid(), number)

  sys.addaudithook(note)
  sys.argv = sys.argv[5:]
  sys.path[0] = os.path.dirname(os.path.abspath(sys.argv[0]))
  try:
    runpy.run_path(sys.argv[0], run_name="__main__")
  finally:
    print(f"operations: {seen}", file=sys.stderr)


if __name__ == "__main__":
  main()
