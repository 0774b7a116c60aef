"""Tests of what a process says that has lost another one.

tests/launchers/test_determinism.py kills and stops processes of a run.
"""

import signal
import subprocess
import sys

import pytest

# As in a thread of jaxlib's: what throws is called by C, which catches nothing.
_THROW = """
import ctypes
from qdrl_haiku.programs.cli import lost

lost.advise_lost("go on with --resume")
lost._leave_at_bad_casts()
ctypes.CDLL("libstdc++.so.6").{}()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="it is Linux's C++")
@pytest.mark.parametrize(("name", "code", "message"), [
  ("__cxa_bad_cast", 1,
   "error: another process is gone or out of reach (nothing is heard of it); "
   "go on with --resume\n"),
  # What has another cause ends the process as it would have.
  ("_ZSt17__throw_bad_allocv", -signal.SIGABRT, "std::bad_alloc")])
def test_a_bad_cast_that_nothing_catches_is_a_lost_process(name, code, message):
  done = subprocess.run(
    [sys.executable, "-c", _THROW.format(name)], capture_output=True, text=True)
  assert done.returncode == code
  assert done.stderr == message if code == 1 else message in done.stderr
