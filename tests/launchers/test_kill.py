"""Tests that a run killed anywhere ends as if nothing had happened."""

import random

import pytest

from tests.launchers import kill


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
  """Compiled programs, which these runs share."""
  return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def straight(cache, tmp_path_factory):
  """(name) -> what an uninterrupted run ends with, and its operations."""
  known = {}

  def get(name):
    if name not in known:
      logdir = tmp_path_factory.mktemp("straight") / name
      code, operations = kill.run(name, logdir, cache, None)
      assert code == 0
      known[name] = kill.contents(logdir), operations
    return known[name]

  return get


@pytest.mark.parametrize(
  ("name", "signals", "delay"),
  [
    ("pbt", ("SIGKILL", "SIGTERM"), 0.0),
    # The delay is about that of a checkpoint, whose arrays aren't written by
    # Python.
    ("me_pbt", ("SIGKILL", "SIGKILL"), 0.01),
  ],
)
def test_a_run_killed_twice_ends_as_the_uninterrupted_one(
  name, signals, delay, cache, straight, tmp_path
):
  expected, operations = straight(name)
  logdir, generator = tmp_path / name, random.Random()
  for signal in signals:
    count = generator.randint(operations // 8, operations // 3)
    point = kill.Point(signal, count, delay)
    code, _ = kill.run(name, logdir, cache, point)
    assert code == (75 if signal == "SIGTERM" else -9), point
  code, _ = kill.run(name, logdir, cache, None)
  assert code == 0
  assert kill.differences(kill.contents(logdir), expected) == []
