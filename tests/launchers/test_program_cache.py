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
_TRACED = "module conversion jit(train)"
# So that a process says when its environment is traced.
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
         "JAX_LOG_COMPILES": "1", "PYTHONPATH": os.getcwd()},
    capture_output=True,
    text=True,
    check=False,
  )  # fmt: skip
  assert done.returncode == 0, done.stderr
  return done.stdout + done.stderr


def _rows(folder, name):
  """The rows of a run, without what clocks say."""
  rows = (folder / name / "metrics.jsonl").read_text().splitlines()
  clocks = ("walltime", "per_second", "seconds")
  return [
    {k: v for k, v in json.loads(row).items() if not k.endswith(clocks)}
    for row in rows
  ]


@pytest.mark.slow
@pytest.mark.parametrize("num_devices", [1, 2])
def test_a_second_start_traces_nothing_and_computes_the_same(
  tmp_path, num_devices
):
  def start(name, *flags):
    flags = ("--env_name=point_maze", *flags)
    return _start(tmp_path, name, *flags, num_devices=num_devices)

  assert _TRACED in start("first")
  assert _TRACED not in start("second")
  assert _rows(tmp_path, "first") == _rows(tmp_path, "second")
  assert _TRACED not in start("seed", "--seed=3")
  assert _rows(tmp_path, "seed") != _rows(tmp_path, "second")
  # Another setting makes other programs.
  assert _TRACED in start("other", "--num_envs=4")


@pytest.mark.slow
def test_damage_to_all_that_is_kept_is_mended(tmp_path):
  flags = ("--env_name=point_maze",)
  _start(tmp_path, "first", *flags)
  for path in (tmp_path / "cache" / "kept").iterdir():
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
  assert _TRACED in _start(tmp_path, "second", *flags)
  assert _rows(tmp_path, "first") == _rows(tmp_path, "second")


@pytest.mark.slow
@pytest.mark.parametrize("num_devices", [1, 2])
def test_a_users_environment_is_traced_and_checked_at_each_start(
  tmp_path, num_devices
):
  path = tmp_path / "lines_of_mine.py"
  path.write_text(users_module.SOURCE.replace(_STEP, _LOUD))

  def start(name):
    flags = ("--env_name=lines_of_mine:make_env",)
    return _start(tmp_path, name, *flags, num_devices=num_devices)

  for name in ("first", "second"):
    assert "traced" in start(name).splitlines()
  assert _rows(tmp_path, "first") == _rows(tmp_path, "second")


_READS_A_FILE = """
import json

import jax.numpy as jnp

from qdrl_haiku import environments

SPEED = json.load(open("speed.json"))


class Line:
  observation_size = 1
  action_size = 1

  def reset(self, key):
    x = jnp.zeros(1)
    return environments.State(x, x, jnp.zeros(()), jnp.zeros(()))

  def step(self, state, action):
    return state.replace(reward=jnp.float32(SPEED))


def make():
  return Line()
"""


@pytest.mark.slow
def test_an_environment_whose_data_have_changed_is_another(tmp_path):
  (tmp_path / "line_env.py").write_text(_READS_A_FILE)
  for speed in (1.0, 5.0):
    (tmp_path / "speed.json").write_text(str(speed))
    _start(tmp_path, str(speed), "--env_name=line_env:make")
    last = _rows(tmp_path, str(speed))[-1]
    assert last["eval/episode_return"] == 10 * speed


@pytest.mark.slow
def test_where_all_diverge_a_start_that_traced_nothing_begins_anew(tmp_path):
  flags = ("--env_name=point_maze", "--critic_learning_rate=1e30")
  first = _start(tmp_path, "first", *flags)
  assert "diverged" in first
  assert _start(tmp_path, "second", *flags).count("diverged") == (
    first.count("diverged")
  )
  assert _rows(tmp_path, "first") == _rows(tmp_path, "second")
