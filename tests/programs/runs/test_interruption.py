"""Tests of leaving a run when told to."""

import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest

from qdrl_haiku.programs.runs import interruption as interruption_lib


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_noted_and_handlers_are_what_they_were(number, capfd):
  before = [signal.getsignal(x) for x in (signal.SIGINT, signal.SIGTERM)]
  with interruption_lib.interruptible() as interruption:
    interruption.can_wait = True
    assert not interruption.requested
    os.kill(os.getpid(), number)
    deadline, said = time.monotonic() + 10, ""
    while not said and time.monotonic() < deadline:
      said = capfd.readouterr().err
      time.sleep(0.01)
    assert interruption.requested
  assert f"{number.name}: the run stops after this generation" in said
  after = [signal.getsignal(x) for x in (signal.SIGINT, signal.SIGTERM)]
  assert after == before and signal.set_wakeup_fd(-1) == -1


# Busy where no handler of Python's could run, as a compiled program is. Of the
# room that module alone: the others import jax.
_BUSY = """
  import hashlib, runpy, sys

  with runpy.run_path(sys.argv[2])["interruptible"]() as interruption:
    interruption.can_wait = sys.argv[1] == "waits"
    print("ready", flush=True)
    hashlib.pbkdf2_hmac("sha256", b"", b"", 10**9)
"""


def _start(how):
  path = interruption_lib.__file__
  process = subprocess.Popen(
    [sys.executable, "-c", textwrap.dedent(_BUSY), how, path],
    stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
  assert process.stdout.readline() == "ready\n"
  return process


def test_a_second_signal_leaves_at_once():
  process = _start("waits")
  process.send_signal(signal.SIGINT)
  assert "once more" in process.stderr.readline() + process.stderr.readline()
  process.send_signal(signal.SIGINT)
  assert process.wait(timeout=10) == 128 + signal.SIGINT


def test_where_there_is_nothing_to_finish_the_first_one_does():
  process = _start("doesn't")
  process.send_signal(signal.SIGTERM)
  assert process.wait(timeout=10) == interruption_lib.INTERRUPTED
  assert "nothing to finish" in process.stderr.read()
