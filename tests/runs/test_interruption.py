"""Tests of leaving a run when told to."""

import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest

from qdrl_haiku.runs import interruption as interruption_lib


def _wait_for(condition):
  deadline = time.monotonic() + 10
  while not condition() and time.monotonic() < deadline:
    time.sleep(0.01)
  assert condition()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_noted_and_the_process_goes_on(number, capfd):
  with interruption_lib.interruptible() as interruption:
    interruption.can_wait = True
    assert not interruption.requested
    os.kill(os.getpid(), number)
    _wait_for(lambda: interruption.requested)
  message = capfd.readouterr().err
  assert f"{number.name}: the run stops after this generation" in message


def test_handlers_are_afterwards_what_they_were():
  before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
  with interruption_lib.interruptible():
    assert signal.getsignal(signal.SIGINT) is not before[0]
  after = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
  assert after == before
  assert signal.set_wakeup_fd(-1) == -1


# Busy where no handler of Python's could run, as a compiled program is.
_BUSY = """
  import hashlib, sys
  from qdrl_haiku.runs import interruption as interruption_lib

  with interruption_lib.interruptible() as interruption:
    interruption.can_wait = sys.argv[1] == "waits"
    print("ready", flush=True)
    hashlib.pbkdf2_hmac("sha256", b"", b"", 10**9)
"""


def _start(*arguments):
  process = subprocess.Popen(
    [sys.executable, "-c", textwrap.dedent(_BUSY), *arguments],
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
  )
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
