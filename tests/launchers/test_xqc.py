"""Tests of a run of a learner that comes with batch statistics."""

import jax
import numpy as np
import pytest

from qdrl_haiku import artifacts, learners
from tests import configs
from tests.launchers import harness

_FLAGS = (
  "--learner=xqc", "--env_name=point_maze", "--episode_length=20",
  "--population_size=2", "--num_envs=2", "--batch_size=8",
  "--hidden_layer_sizes=8", "--num_atoms=11", "--replay_capacity=200",
  "--min_replay_size=16", "--perturbation_interval=40",
  "--num_eval_episodes=2", "--checkpoint_interval=1", "--seed=3",
  "--nouse_tensorboard",
)  # fmt: skip


@pytest.mark.slow
def test_a_run_goes_on_to_the_bit_and_is_evaluated_and_exported(
  tmp_path, capsys
):
  straight, parts = tmp_path / "straight", tmp_path / "parts"
  harness.start(
    "train_pbt", *_FLAGS, f"--logdir={straight}", "--num_timesteps=120"
  )
  harness.start(
    "train_pbt", *_FLAGS, f"--logdir={parts}", "--num_timesteps=40"
  )
  harness.start(
    "train_pbt", *_FLAGS, f"--logdir={parts}", "--num_timesteps=120",
    "--resume",
  )  # fmt: skip
  learner = learners.xqc(
    2, 2, configs.sized(learners.XQCConfig, (8,), (8,), num_atoms=11)
  )
  found = [
    artifacts.read_agents(learner, str(logdir))[0]
    for logdir in (straight, parts)
  ]
  assert isinstance(found[0], learners.XQCState)
  jax.tree.map(np.testing.assert_array_equal, *found)
  counts = [x["count"] for x in found[0].critic_state.values()]
  # A critic step per environment step, but for the first ones.
  assert np.min(counts) > 100 and np.ptp(counts) == 0

  policy = tmp_path / "policy.npz"
  outcome = harness.run(
    capsys, "evaluate", f"--logdir={parts}", "--num_eval_episodes=2",
    f"--export={policy}",
  )  # fmt: skip
  assert outcome.code == 0, outcome.err
  assert artifacts.export.load(policy).config["num_normalized"] == 2
