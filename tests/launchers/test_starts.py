"""Tests of processes: what one leaves for the next, and where it writes."""

import os
import re
import subprocess
import sys

import pytest

from qdrl_haiku import runs
from tests.launchers import harness, kill
from tests.runs import common

_TRACED = "module conversion jit(train)"


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


@pytest.mark.slow
@pytest.mark.parametrize("rate", ["1e-3", "1e30"])
def test_a_second_start_traces_nothing_and_computes_the_same(rate, tmp_path):
  """Also where all agents diverge, and begin anew."""

  def start(name, *flags):
    printed = _launch(
      "train", "--env_name=point_maze", "--learner=sac", "--num_seeds=2",
      "--hidden_layer_sizes=4", "--num_envs=2", "--batch_size=8",
      "--min_replay_size=8", "--eval_interval=20", "--num_timesteps=40",
      "--num_eval_episodes=1", "--episode_length=10", "--log_to=",
      f"--critic_learning_rate={rate}", f"--logdir={name}",
      f"--compilation_cache_dir={tmp_path / 'cache'}", *flags,
      cwd=tmp_path, JAX_NUM_CPU_DEVICES="2",
      code=runs.DIVERGED if rate == "1e30" else 0)
    assert ("diverged" in printed) == (rate == "1e30")
    return _TRACED in printed, common.rows(tmp_path / name)

  is_traced, rows = start("first")
  assert is_traced
  assert start("second") == (False, rows)
  if rate == "1e30":
    return
  is_traced, others = start("seed", "--seed=3")
  assert not is_traced and others != rows
  # Another setting makes other programs.
  assert start("other", "--num_envs=4")[0]
  # What is damaged is compiled again.
  for path in (tmp_path / "cache" / "kept").iterdir():
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
  assert start("third") == (True, rows)


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
