"""Tests of what a run says on the terminal."""

import threading
import time

import pytest

from qdrl_haiku.programs.runs import progress as progress_lib

_ROW = {"generation": 4, "step": 400, "training/env_steps_per_second": 1234.4}


@pytest.fixture
def clock(monkeypatch):
  """Time that stands still until it is told to pass."""
  now = [100.0]
  monkeypatch.setattr(progress_lib.time, "monotonic", lambda: now[0])
  return now


def test_a_line_says_how_far_how_good_how_fast_and_how_long(clock, capsys):
  progress = progress_lib.Progress(10, 2)
  clock[0] += 56.0
  progress.wait(50.0)  # Which doesn't come again.
  progress.show(_ROW, "return best 9.0 mean 8.0")
  # Two generations in six seconds, six to go.
  assert capsys.readouterr().out == (
    "generation 4/10  step 400  return best 9.0 mean 8.0  1234 steps/s  "
    "18 s left\n")


def test_every_so_often_a_line_says_what_is_waited_for(capsys, monkeypatch):
  monkeypatch.setattr(progress_lib, "_SECONDS", 0.01)
  texts = ["compiling train", "", "compiling evaluate"]
  before = set(threading.enumerate())
  with progress_lib.progress_of_waiting(lambda: texts.pop(0) if texts else ""):
    while texts:
      time.sleep(0.01)
  assert capsys.readouterr().out == (
    "compiling train, 0 s so far\ncompiling evaluate, 0 s so far\n")
  # A thread that ends later would have programs deleted as Python ends.
  assert set(threading.enumerate()) <= before
