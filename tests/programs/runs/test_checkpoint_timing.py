"""Tests of when checkpoints are written."""

import pytest

from qdrl_haiku.distributed import hosts
from qdrl_haiku.programs.runs.checkpoint_timing import CheckpointPlan


class _Clock:
  """Says whatever time it was set to."""

  now = 0.0

  def __call__(self):
    return self.now


@pytest.fixture
def clock():
  return _Clock()


def _write(plan, clock, seconds):
  with plan.writing():
    clock.now += seconds


@pytest.mark.parametrize(("first", "later"), [(5.0, 0.25), (30.0, 30.0)])
def test_checkpoints_take_a_twentieth_of_the_time_at_most(first, later, clock):
  plan, took = CheckpointPlan(None, clock), []
  for generation in range(1, 1001):
    clock.now += 1.0
    if plan.is_due(generation):  # At first at once; then the last one decides.
      took.append(later if took else first)
      _write(plan, clock, took[-1])
  assert 0.045 < sum(took) / clock.now <= 0.0625
  assert len(took) > 1


def test_a_number_stays_as_given(clock):
  plan, due = CheckpointPlan(3, clock), []
  for generation in range(1, 8):
    if plan.is_due(generation):
      due.append(generation)
      _write(plan, clock, 1000.0)
  assert due == [3, 6]


def test_the_first_process_decides_for_all(clock, monkeypatch):
  plan = CheckpointPlan(None, clock)
  _write(plan, clock, 1.0)
  monkeypatch.setattr(hosts, "as_first_host", lambda flag: not flag)
  assert plan.is_due(1)
  clock.now += 19.0
  assert not plan.is_due(2)
