"""Tests of processes: what one leaves for the next, and where it writes."""

import os
import re
import subprocess
import sys

import pytest

from tests.launchers import harness, kill
from tests.programs.runs import common

_READ = "compilation cache hit for 'jit_train'"


def _launch(name, *flags, cwd=None, code=0, **variables):
  """Starts a launcher in a process of its own; returns what it printed."""
  done = subprocess.run(
    [sys.executable, "-u", str(harness.LAUNCHERS / f"{name}.py"), *flags],
    cwd=cwd,
    env=os.environ
    | {"JAX_LOG_COMPILES": "1", "PYTHONPATH": os.getcwd()}
    | variables,
    stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
  assert done.returncode == code, (name, done.stdout)
  return done.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  """Where a user is, and keeps programs."""
  return tmp_path_factory.mktemp("starts")


@pytest.fixture(scope="module")
def start(folder):
  """Starts a small run as users do; returns whether it read code, and rows."""

  def start_(name, *flags, code=0):
    printed = _launch(
      "train", "--env_name=point_maze", "--learner=sac", "--population_size=2",
      "--hidden_layer_sizes=4", "--num_envs=2", "--batch_size=8",
      "--min_replay_size=8", "--perturbation_interval=20", "--num_timesteps=40",
      "--num_eval_episodes=1", "--episode_length=10", "--log_to=",
      f"--logdir={name}", f"--compilation_cache_dir={folder / 'cache'}", *flags,
      cwd=folder, JAX_NUM_CPU_DEVICES="2", code=code)
    return _READ in printed, common.rows(folder / name)

  return start_


@pytest.mark.slow
def test_a_second_start_compiles_nothing_and_computes_the_same(start, folder):
  was_read, rows = start("first")
  assert not was_read and len(rows) == 2
  assert start("second") == (True, rows)
  was_read, others = start("seed", "--seed=3")
  assert was_read and others != rows
  for path in (folder / "cache").glob("*-cache"):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
  assert start("third") == (False, rows)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["smerl", "me_pbt"])
def test_nothing_compiles_after_the_first_generation(name, tmp_path):
  launcher, *flags = kill.COMMANDS[name]
  printed = _launch(launcher, *flags, f"--logdir={tmp_path / 'run'}")
  first, *later = re.split(r"generation \d+/6 ", printed)
  assert "Compiling jit" in first  # That is how jax calls it.
  assert len(later) == 6
  # After the last generation a repertoire is evaluated again and written.
  alike = later[:4] if name == "me_pbt" else later
  assert re.findall(r"Compiling (jit\S+)", "".join(alike)) == []


@pytest.mark.slow
@pytest.mark.skipif(
  not hasattr(os, "sched_setaffinity"), reason="no process has an affinity")
def test_there_is_a_device_of_each_core_that_a_process_may_use(tmp_path):
  before = os.sched_getaffinity(0)
  os.sched_setaffinity(0, {min(before)})  # Which the launcher inherits.
  try:
    printed = _launch("train_pbt", *kill.SMALL, "--dry_run", cwd=tmp_path)
  finally:
    os.sched_setaffinity(0, before)
  assert re.search(
    r"devices used +1 of 1 \(1 of \d+ cores by the process's aff", printed)
