"""Tests that a run is the same on however many devices and processes.

Devices of a machine with one CPU are threads of it, and processes of one
machine talk as those of several do.
"""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time

import pytest

from qdrl_haiku.cli import devices
from tests.launchers import harness, kill

_SMALL = [
  "--env_name=point_maze", "--episode_length=20", "--num_envs=2",
  "--batch_size=8", "--hidden_layer_sizes=8", "--replay_capacity=200",
  "--min_replay_size=16", "--perturbation_interval=40", "--num_timesteps=120",
  "--num_eval_episodes=2", "--nouse_tensorboard", "--max_checkpoints=1",
]  # fmt: skip
_PBT = ["train_pbt", *_SMALL, "--learner=sac", "--population_size=8"]
_REPERTOIRE = [
  "train_me_pbt", *_SMALL, "--num_initial_genotypes=8",
  "--num_replaced_by_best=2", "--grid_shape=4,4",
]  # fmt: skip
_ME_PBT = [
  *_REPERTOIRE, "--learner=sac", "--gradient_population_size=8",
  "--variation_batch_size=8",
]  # fmt: skip


def test_processes_are_told_to_wait_by_flags_that_xla_knows(monkeypatch):
  flag, *others = devices._WAITING
  monkeypatch.setattr(
    devices, "_WAITING", (flag, *others, "xla_no_such_flag")
  )
  monkeypatch.setenv("XLA_FLAGS", f"--{flag}=7")
  devices._allow_waiting()
  # What the user said stays.
  given, *added = os.environ["XLA_FLAGS"].split()
  assert given == f"--{flag}=7"
  assert added == [f"--{name}=86400" for name in others]


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
  """Compiled programs, which runs on equally many devices share."""
  return tmp_path_factory.mktemp("cache")


def _start(logdir, cache, num_devices, *arguments, cwd=None):
  launcher, *rest = arguments
  return subprocess.Popen(
    [
      sys.executable,
      str(harness.LAUNCHERS / f"{launcher}.py"),
      *rest,
      f"--logdir={logdir}",
      f"--compilation_cache_dir={cache}",
    ],
    cwd=cwd,
    env=os.environ | {"JAX_NUM_CPU_DEVICES": str(num_devices)},
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
  )


def _start_two(logdir, cache, num_devices, *arguments, cwd=None):
  """Two processes with so many devices each."""
  with socket.socket() as free:
    free.bind(("localhost", 0))
    address = f"localhost:{free.getsockname()[1]}"
  return [
    _start(
      logdir,
      cache,
      num_devices,
      *arguments,
      f"--coordinator_address={address}",
      "--num_processes=2",
      f"--process_id={i}",
      cwd=cwd,
    )
    for i in range(2)
  ]


def _finish(*processes):
  for process in processes:
    _, error = process.communicate(timeout=600)
    assert process.returncode == 0, error


def _run(logdir, cache, placement, *arguments):
  """Runs on some devices, or "2x2": on two processes of two each."""
  if placement == "2x2":
    _finish(*_start_two(logdir, cache, 2, *arguments))
  else:
    _finish(_start(logdir, cache, placement, *arguments))


def _contents(logdir):
  """All but means over members, which are summed in another order."""
  found = kill.contents(logdir)
  del found["metrics.jsonl"]
  return found


@pytest.mark.slow
@pytest.mark.parametrize(
  ("arguments", "placements"),
  [
    (_PBT, (8, "2x2", 1)),
    (
      [
        *_REPERTOIRE, "--learner=td3", "--emitter=pbt:4,dcrl:4",
        "--num_critic_steps=4", "--num_policy_steps=3", "--adding=adaptive",
      ],
      (1, 2, 4),
    ),
    (
      [*_REPERTOIRE, "--learner=td3", "--emitter=pbt:4,cma:8"],
      (1, 2, 4),
    ),
    (
      [
        *_ME_PBT, "--tessellation=none", "--num_cells=16",
        "--shard_repertoire",
      ],
      (1, 2, 4),
    ),
  ],
  ids=["population", "shared critics", "samples of CMA-ES", "no cells"],
)  # fmt: skip
def test_devices_and_processes_change_no_bit(
  arguments, placements, cache, tmp_path
):
  expected = None
  for placement in placements:
    logdir = tmp_path / str(placement)
    _run(logdir, cache, placement, *arguments)
    contents = _contents(logdir)
    expected = expected or contents
    assert kill.differences(contents, expected) == [], placement


@pytest.mark.slow
def test_neither_processes_nor_sharing_the_cells_change_a_bit(cache, tmp_path):
  arguments = [*_ME_PBT, "--num_reevaluations=3"]
  alone, shared = tmp_path / "alone", tmp_path / "shared"
  _run(alone, cache, 2, *arguments, "--noshard_repertoire")
  _run(shared, cache, "2x2", *arguments, "--shard_repertoire")
  assert kill.differences(_contents(shared), _contents(alone)) == []
  # All of them look again at their shares of the elites.
  corrected = [
    json.loads((path / "corrected.json").read_text())
    for path in (shared, alone)
  ]
  assert corrected[0] == pytest.approx(corrected[1])


@pytest.mark.slow
def test_a_run_of_two_processes_goes_on_in_one_and_back(cache, tmp_path):
  arguments = _PBT
  straight, moved = tmp_path / "straight", tmp_path / "moved"
  _run(straight, cache, 4, *arguments, "--num_timesteps=160")
  _run(moved, cache, "2x2", *arguments, "--num_timesteps=40")
  _run(moved, cache, 4, *arguments, "--num_timesteps=80", "--resume")
  of_one_device = tmp_path / "of_one_device"
  shutil.copytree(moved, of_one_device)
  _run(moved, cache, "2x2", *arguments, "--num_timesteps=160", "--resume")
  assert kill.differences(_contents(moved), _contents(straight)) == []
  _run(of_one_device, cache, 1, *arguments, "--num_timesteps=160", "--resume")


def _without_rest(contents, size):
  """Without the slots that no member is in."""
  members = re.compile(r"checkpoints (learner|replay|environment) ")
  return {
    name: x[:size] if members.match(name) else x for name, x in contents.items()
  }


_SEVEN = [*_PBT, "--population_size=7"]


@pytest.fixture(scope="module")
def moved(cache, tmp_path_factory):
  """A run on four devices, on one, and on three: in 8, 7 and 9 slots."""
  logdir = tmp_path_factory.mktemp("moved") / "run"
  for steps, num_devices in ((40, 4), (80, 1), (120, 3)):
    resume = ["--resume"] if logdir.exists() else []
    steps = f"--num_timesteps={steps}"
    _run(logdir, cache, num_devices, *_SEVEN, steps, *resume)
  return logdir


@pytest.mark.slow
def test_devices_that_share_unevenly_go_on_with_one_anothers_runs(
  moved, cache, tmp_path
):
  straight = tmp_path / "straight"
  _run(straight, cache, 1, *_SEVEN)
  contents = _contents(moved)
  (name,) = [x for x in contents if x.startswith("checkpoints replay")
             and x.endswith("['size']")]
  assert contents[name].tolist() == [120] * 9
  expected = _without_rest(_contents(straight), 7)
  assert kill.differences(_without_rest(contents, 7), expected) == []


@pytest.mark.slow
def test_two_processes_agree_on_a_name_and_begin_with_anothers_agents(
  moved, cache, tmp_path
):
  alone = tmp_path / "alone"
  # Agents of nine slots go to six.
  arguments = [
    *_PBT, "--num_timesteps=40", "--population_size=5",
    f"--warm_start={moved}", "--seed=1",
  ]  # fmt: skip
  _run(alone, cache, 1, *arguments)
  _finish(*_start_two("", cache, 1, *arguments, cwd=tmp_path))
  (logdir,) = (tmp_path / "logs").iterdir()
  assert re.fullmatch(r"point_maze-pbt_sac-\d{8}-\d{6}", logdir.name)
  expected = _without_rest(_contents(alone), 5)
  assert kill.differences(_without_rest(_contents(logdir), 5), expected) == []


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_a_process_that_dies_ends_the_other_which_can_be_resumed(
  victim, cache, tmp_path
):
  logdir = tmp_path / "run"
  arguments = [*_PBT, "--checkpoint_interval=1"]
  processes = _start_two(
    logdir, cache, 1, *arguments, "--num_timesteps=40000"
  )
  deadline = time.monotonic() + 300
  while not (logdir / "checkpoints" / "80").exists():
    assert time.monotonic() < deadline
    time.sleep(0.1)
  processes[victim].send_signal(signal.SIGKILL)
  start = time.monotonic()
  other = processes[1 - victim]
  _, error = other.communicate(timeout=120)
  assert time.monotonic() - start < 60
  assert other.returncode != 0
  # Ours, or what JAX says if it notices first.
  assert "another process is gone" in error or "another task died" in error
  processes[victim].communicate()
  steps = max(
    int(path.name)
    for path in (logdir / "checkpoints").iterdir()
    if path.name.isdecimal()
  )
  _finish(
    *_start_two(
      logdir, cache, 1, *arguments, f"--num_timesteps={steps + 40}", "--resume"
    )
  )
