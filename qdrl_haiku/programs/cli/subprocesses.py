"""Launchers that a launcher starts, one after the other, as processes."""

import contextlib
import os
import pathlib
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import NamedTuple

# As absl writes a warning: its day, time, thread and place, then its text.
_WARNING = re.compile(r"W\d{4} [^]]*\] (.*)")


class Done(NamedTuple):
  """Holds a launcher's exit code, the lines that say why, its warnings.

  The lines are its errors, or else the last one of its standard error.
  """

  code: int
  message: str
  warnings: tuple[str, ...] = ()


class Processes:
  """Starts launchers; `is_interrupted` once a signal was handed on."""

  def __init__(self) -> None:
    self.is_interrupted = False
    self._process: subprocess.Popen | None = None

  def run(self, launcher: str, flags: Sequence[str], log: pathlib.Path) -> Done:
    """Runs a launcher until it ends; appends its output to a file."""
    if self.is_interrupted:
      return Done(1, "interrupted")
    message, errors, warnings = "", [], []
    with (
      log.open("a") as file,
      subprocess.Popen(
        [sys.executable, subprocess_launcher(launcher), *flags], stdout=file,
        stderr=subprocess.PIPE, text=True, errors="replace",
        # A terminal's Ctrl-C is handed on, and must not come twice.
        process_group=0) as process,
    ):
      self._process = process
      if self.is_interrupted:  # Just before it was known.
        process.send_signal(signal.SIGTERM)
      assert process.stderr is not None
      for line in process.stderr:
        file.write(line)
        file.flush()
        message = line.strip() or message
        warnings += _WARNING.findall(line)
        if line.startswith("error: "):
          errors.append(line.strip())
    self._process = None
    message = "\n".join(errors) or message
    return Done(process.returncode, message, tuple(warnings))

  def stop(self, number: int, frame: FrameType | None) -> None:
    """Hands a signal on, as a handler of signals."""
    del frame
    self.is_interrupted = True
    if self._process is not None and self._process.poll() is None:
      self._process.send_signal(number)


@contextlib.contextmanager
def forward_subprocess_signals() -> Iterator[Processes]:
  """Hands SIGINT and SIGTERM on to the launcher that runs."""
  processes = Processes()
  before = {
    number: signal.signal(number, processes.stop)
    for number in (signal.SIGINT, signal.SIGTERM)}
  try:
    yield processes
  finally:
    for number, handler in before.items():
      signal.signal(number, handler)


def subprocess_launcher(launcher: str) -> str:
  """Returns the path of another launcher, which lies beside this one."""
  folder, program = os.path.split(sys.argv[0])
  if program.endswith(".py"):
    return os.path.join(folder, f"{launcher}.py")
  return os.path.join(folder, f"qdrl-{launcher.replace('_', '-')}")
