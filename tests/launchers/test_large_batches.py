"""What accelerators are for, scaled down: many environments, large batches."""

import json

import pytest

from tests.launchers import harness

_PRESET = harness.LAUNCHERS / "flagfiles" / "gpu_large_batch.flags"
# A sixteenth of the environments and of the batch, in the open maze.
_SMALLER = (
  "--env_name=point_maze", "--backend=", "--maze_layout=open",
  "--num_envs=64", "--batch_size=512", "--grad_updates_per_step=0.0625",
  "--replay_capacity=65536", "--min_replay_size=1280", "--population_size=2",
  "--hidden_layer_sizes=64,64", "--num_timesteps=6400",
  "--perturbation_interval=1280", "--num_eval_episodes=4",
  "--nouse_tensorboard",
)  # fmt: skip


@pytest.mark.slow
def test_the_preset_fits_this_machine(capsys):
  outcome = harness.run(
    capsys, "train_pbt", f"--flagfile={_PRESET}", "--dry_run"
  )
  assert outcome.code == 0, outcome.err
  assert "memory needed" in outcome.out


@pytest.mark.slow
def test_agents_that_learn_from_large_batches_learn_the_maze(tmp_path):
  logdir = tmp_path / "run"
  harness.start(
    "train_pbt", f"--flagfile={_PRESET}", *_SMALLER, f"--logdir={logdir}"
  )
  rows = [
    json.loads(line)
    for line in (logdir / "metrics.jsonl").read_text().splitlines()
  ]
  returns = [row["pbt/mean_return"] for row in rows]
  # The first evaluation is before they learn.
  assert returns[0] < 1 and returns[-1] > 5, returns
