"""Tests that a run cut short anywhere ends as if nothing had happened."""

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
      code, operations, error = kill.run(name, logdir, cache, None)
      assert code == 0, error
      known[name] = kill.contents(logdir), operations
    return known[name]

  return get


def _assert_ends_as(expected, name, logdir, cache):
  code, _, error = kill.run(name, logdir, cache, None)
  assert code == 0, error
  assert kill.differences(kill.contents(logdir), expected) == []


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
    code, _, error = kill.run(name, logdir, cache, point)
    assert code == (kill.INTERRUPTED if signal == "SIGTERM" else -9), (
      point,
      error,
    )
  _assert_ends_as(expected, name, logdir, cache)


def test_a_disk_that_fills_up_leaves_the_last_checkpoint_usable(
  cache, straight, tmp_path
):
  expected, operations = straight("pbt")
  logdir = tmp_path / "pbt"
  point = kill.Point("FULL", operations // 2)
  code, _, error = kill.run("pbt", logdir, cache, point)
  assert code == 1
  assert "error: " in error and "go on with --resume" in error
  _assert_ends_as(expected, "pbt", logdir, cache)
