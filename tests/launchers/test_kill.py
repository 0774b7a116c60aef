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
  """(name, folder) -> how an uninterrupted run ends; its operations there."""
  known = {}

  def get(name, folder="."):
    if name not in known:
      logdir = tmp_path_factory.mktemp("straight") / name
      never = kill.Point("SIGKILL", 0, folder=folder)
      code, operations, error = kill.run(name, logdir, cache, never)
      assert code == 0, error
      known[name] = kill.contents(logdir), operations
    return known[name]

  return get


def _assert_ends_as(expected, name, logdir, cache, *flags):
  code, _, error = kill.run(name, logdir, cache, None, *flags)
  assert code == 0, error
  assert kill.differences(kill.contents(logdir), expected) == []


@pytest.mark.slow
@pytest.mark.parametrize(
  ("name", "signals", "folder"),
  [
    ("pbt", ("SIGKILL", "SIGTERM"), "."),
    ("me_pbt", ("SIGKILL", "SIGKILL"), "checkpoints"),
  ],
  ids=["anywhere", "while a checkpoint is written"],
)
def test_a_run_killed_twice_ends_as_the_uninterrupted_one(
  name, signals, folder, cache, straight, tmp_path
):
  expected, operations = straight(name, folder)
  logdir, generator = tmp_path / name, random.Random()
  for signal in signals:
    count = generator.randint(operations // 8, operations // 3)
    # Arrays are written by other threads than Python's, a little later.
    delay = generator.choice([0.0, 0.005])
    point = kill.Point(signal, count, delay, folder)
    code, _, error = kill.run(name, logdir, cache, point)
    assert code == (kill.INTERRUPTED if signal == "SIGTERM" else -9), (
      point,
      error,
    )
  _assert_ends_as(expected, name, logdir, cache)


@pytest.mark.slow
@pytest.mark.parametrize(
  ("name", "interval", "generations"),
  [
    ("pbt", 5, (2, 4, 5)),
    ("pb2", 2, (5,)),
    ("mf_pbt", 3, (4,)),
    ("diayn", 3, (2, 5)),
    ("me_pbt", 5, (3, 4)),
    ("own_learner_and_controller", 3, (2, 5)),
    ("own_emitter", 3, (2, 5)),
  ],
)
def test_a_run_killed_after_generations_ends_as_the_uninterrupted_one(
  name, interval, generations, cache, straight, tmp_path
):
  expected, _ = straight(name)
  logdir = tmp_path / name
  flag = f"--checkpoint_interval={interval}"
  for generation in generations:
    point = kill.after(generation)
    code, _, error = kill.run(name, logdir, cache, point, flag)
    assert code == -9, error
  _assert_ends_as(expected, name, logdir, cache, flag)


@pytest.mark.slow
def test_a_disk_that_fills_up_leaves_the_last_checkpoint_usable(
  cache, straight, tmp_path
):
  expected, operations = straight("pbt")
  logdir = tmp_path / "pbt"
  point = kill.Point("FULL", operations // 2)
  code, _, error = kill.run("pbt", logdir, cache, point)
  assert code == 1, error
  assert "error: " in error, error
  assert "go on with --resume" in error, error
  _assert_ends_as(expected, "pbt", logdir, cache)
