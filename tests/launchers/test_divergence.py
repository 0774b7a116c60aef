"""Tests of how a program ends whose agents diverge again and again."""

import pathlib

import jax.numpy as jnp
import pytest

from qdrl_haiku import environments, runs
from tests.launchers import harness

_FLAGS = (
  "--env_name=tests.launchers.test_divergence:Huge", "--episode_length=5",
  "--learner=sac", "--population_size=2", "--num_envs=2",
  "--hidden_layer_sizes=4", "--batch_size=4", "--min_replay_size=4",
  "--perturbation_interval=16", "--num_timesteps=64", "--num_eval_episodes=1",
)  # fmt: skip


class Huge:
  """Its rewards are 1e30."""

  observation_size = 1
  action_size = 1

  def reset(self, key):
    del key
    zero = jnp.zeros(())
    return environments.State(zero, zero[None], zero, zero)

  def step(self, state, action):
    del action
    return state.replace(reward=jnp.float32(1e30))


def _train(capsys, tmp_path):
  return harness.run(
    capsys, "train_pbt", *_FLAGS, f"--logdir={tmp_path / 'run'}"
  )


def test_a_run_that_ended_diverged_has_an_exit_code_of_its_own(
  capsys, tmp_path, monkeypatch
):
  def run(*_):
    raise runs.EndedDiverged("all members have diverged.")

  monkeypatch.setattr(runs, "run", run)
  outcome = _train(capsys, tmp_path)
  assert outcome.code == 3
  assert outcome.err.splitlines()[-1].startswith(
    "error: all members have diverged. What the run left is in"
  )


def test_the_exit_codes_are_documented():
  readme = pathlib.Path(harness.LAUNCHERS / "README.md").read_text()
  for code in (runs.DIVERGED, runs.INTERRUPTED):
    assert f"| {code} |" in readme


@pytest.mark.slow
def test_rewards_that_no_agent_can_learn_from_are_named(capsys, tmp_path):
  outcome = _train(capsys, tmp_path)
  assert outcome.code == 3
  assert outcome.err.count("WARNING: all members have diverged in 3 ") == 1
  assert "rewards of 1e+30" in outcome.err
  assert outcome.out.count("rewards of 1e+30; they begin anew") == 4
