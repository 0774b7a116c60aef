"""Tests of when checkpoints are written."""

import pytest

from qdrl_haiku.distributed import hosts
from qdrl_haiku.runs import checkpoint_timing


class _Clock:
  """Says whatever time it was set to."""

  now = 0.0

  def __call__(self):
    return self.now


@pytest.fixture
def clock():
  return _Clock()


@pytest.fixture
def said():
  return []


def _write(plan, clock, seconds):
  with plan.writing():
    clock.now += seconds


def _share_of_time(clock, plan, seconds_of_generation, seconds_of_checkpoint):
  """What part of a thousand generations goes into checkpoints."""
  written = 0
  for generation in range(1, 1001):
    clock.now += seconds_of_generation
    if plan.is_due(generation):
      _write(plan, clock, seconds_of_checkpoint)
      written += 1
  return written * seconds_of_checkpoint / clock.now, written


@pytest.mark.parametrize("seconds", [0.25, 30.0])
def test_checkpoints_take_a_twentieth_of_the_time_at_most(
  seconds, clock, said
):
  plan = checkpoint_timing.CheckpointPlan(None, said.append, clock)
  share, written = _share_of_time(clock, plan, 1.0, seconds)
  assert 0.045 < share <= 0.0625  # The first one comes at once.
  assert written > 1


def test_what_the_last_one_took_decides(clock, said):
  plan = checkpoint_timing.CheckpointPlan(None, said.append, clock)
  assert plan.is_due(1)
  _write(plan, clock, 10.0)
  clock.now += 100.0
  assert not plan.is_due(2)
  clock.now += 90.0
  assert plan.is_due(3)
  _write(plan, clock, 1.0)
  clock.now += 20.0
  assert plan.is_due(4)


def test_a_number_stays_as_given(clock, said):
  plan = checkpoint_timing.CheckpointPlan(3, said.append, clock)
  due = []
  for generation in range(1, 8):
    if plan.is_due(generation):
      due.append(generation)
      _write(plan, clock, 1000.0)
  assert due == [3, 6]


def test_the_first_process_decides_for_all(clock, said, monkeypatch):
  plan = checkpoint_timing.CheckpointPlan(None, said.append, clock)
  _write(plan, clock, 1.0)
  monkeypatch.setattr(hosts, "as_first", lambda flag: not flag)
  assert plan.is_due(1)
  clock.now += 19.0
  assert not plan.is_due(2)


@pytest.mark.parametrize(
  ("interval", "expected"),
  [
    (
      None,
      "A checkpoint takes 1.3 s, so one follows each generation that ends 25 s "
      "or more after the last one; a kill loses at most what came since.",
    ),
    (
      1,
      "A checkpoint is written every generation; a kill loses at most what "
      "came since.",
    ),
    (
      5,
      "A checkpoint is written every 5 generations; a kill loses at most what "
      "came since.",
    ),
  ],
)
def test_what_a_kill_loses_is_told_once(interval, expected, clock, said):
  plan = checkpoint_timing.CheckpointPlan(interval, said.append, clock)
  _write(plan, clock, 1.3)
  _write(plan, clock, 2.0)
  assert said == [expected]
