"""What a start of a launcher leaves for the next ones."""

import json
import os
import subprocess
import sys

import pytest

from tests.launchers import harness, users_module

_TRAIN = [
  "--learner=sac", "--num_seeds=2", "--hidden_layer_sizes=4", "--num_envs=2",
  "--batch_size=8", "--min_replay_size=8", "--eval_interval=20",
  "--num_timesteps=40", "--num_eval_episodes=1", "--episode_length=10",
  "--nouse_tensorboard",
]  # fmt: skip
# So that a process says when it's traced.
_STEP = "  def step(self, state, action):\n"
_LOUD = f"{_STEP}    print('traced')\n"


def _start(folder, name, *flags, num_devices=1):
  """Starts the launcher in a process of its own; returns what it printed."""
  done = subprocess.run(
    [
      sys.executable, str(harness.LAUNCHERS / "train.py"), *_TRAIN,
      f"--logdir={name}", f"--compilation_cache_dir={folder / 'cache'}", *flags,
    ],
    cwd=folder,
    env={**os.environ, "JAX_NUM_CPU_DEVICES": str(num_devices),
         "PYTHONPATH": os.getcwd()},
    capture_output=True,
    text=True,
    check=False,
  )  # fmt: skip
  assert done.returncode == 0, done.stderr
  return done.stdout


def _rows(folder, name):
  """The rows of a run, without what clocks say."""
  rows = (folder / name / "metrics.jsonl").read_text().splitlines()
  clocks = ("walltime", "per_second", "seconds")
  return [
    {k: v for k, v in json.loads(row).items() if not k.endswith(clocks)}
    for row in rows
  ]


@pytest.mark.slow
def test_a_second_start_traces_nothing_and_computes_the_same(tmp_path):
  path = tmp_path / "lines_of_mine.py"
  path.write_text(users_module.SOURCE.replace(_STEP, _LOUD))
  flags = ("--env_name=lines_of_mine:make_env",)
  assert "traced" in _start(tmp_path, "first", *flags)
  assert "traced" not in _start(tmp_path, "second", *flags)
  assert _rows(tmp_path, "first") == _rows(tmp_path, "second")
  assert "traced" not in _start(tmp_path, "seed", *flags, "--seed=3")
  assert _rows(tmp_path, "seed") != _rows(tmp_path, "second")
  # Another setting makes other programs.
  assert "traced" in _start(tmp_path, "other", *flags, "--num_envs=4")

  path.write_text(path.read_text().replace("0.1 * action", "0.2 * action"))
  assert "traced" in _start(tmp_path, "edited", *flags)
  assert _rows(tmp_path, "edited") != _rows(tmp_path, "second")


@pytest.mark.slow
def test_a_second_start_on_two_devices_traces_nothing_either(tmp_path):
  path = tmp_path / "lines_of_mine.py"
  path.write_text(users_module.SOURCE.replace(_STEP, _LOUD))
  flags = ("--env_name=lines_of_mine:make_env",)
  assert "traced" in _start(tmp_path, "first", *flags, num_devices=2)
  assert "traced" not in _start(tmp_path, "second", *flags, num_devices=2)
  assert _rows(tmp_path, "first") == _rows(tmp_path, "second")
  # One device is another kind.
  assert "traced" in _start(tmp_path, "alone", *flags)


@pytest.mark.slow
def test_where_all_diverge_a_start_that_traced_nothing_begins_anew(tmp_path):
  flags = ("--env_name=point_maze", "--critic_learning_rate=1e30")
  first = _start(tmp_path, "first", *flags)
  assert "diverged" in first
  assert _start(tmp_path, "second", *flags).count("diverged") == (
    first.count("diverged")
  )
  assert _rows(tmp_path, "first") == _rows(tmp_path, "second")
