"""Populations of robots are trained as by users, in each physics.

Each in a process of its own, with users' compiler options. `.ci/run` runs the
first two, and another share of the others each day.
"""

import os
import subprocess
import sys

import numpy as np
import pytest

from qdrl_haiku.environments import registry
from tests.environments.robots import walkers
from tests.launchers import harness
from tests.programs.runs import common

_ROBOTS = [
  *((name, backend)
    for backend in registry.BRAX["ant"].backends
    for name in ("halfcheetah", "ant", "hopper", "walker2d")),
  ("halfcheetah_uni", "spring"), ("boxes", "mjx"), ("gym:Hopper-v5", "")]


@pytest.mark.robots
@pytest.mark.parametrize(
  ("name", "backend"), _ROBOTS, ids=map("-".join, _ROBOTS))
def test_a_population_is_trained_for_two_generations(name, backend, tmp_path):
  env_name = name
  if name in walkers.WALKERS:
    env_name = walkers.write_walker(tmp_path, name)
  done = subprocess.run(
    [
      sys.executable, str(harness.LAUNCHERS / "train_pbt.py"),
      f"--env_name={env_name}", f"--backend={backend}", "--population_size=4",
      "--num_envs=8", "--hidden_layer_sizes=64,64", "--num_timesteps=640",
      "--perturbation_interval=320", "--min_replay_size=64",
      "--episode_length=100", "--num_eval_episodes=1", "--log_to=",
      "--logdir=run"],
    cwd=tmp_path, env=os.environ | {"PYTHONPATH": os.getcwd()},
    capture_output=True, text=True)
  assert done.returncode == 0, done.stderr
  assert "compiled as usual" not in done.stderr
  rows = common.rows(tmp_path / "run")
  assert [row["step"] for row in rows] == [320, 640]
  assert all(np.isfinite(row["pbt/mean_return"]) for row in rows)
