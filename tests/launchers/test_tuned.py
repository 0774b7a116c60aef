"""Tests of the settings for an environment and a learner."""

import pytest

from qdrl_haiku.storage.directory import RunDirectory
from tests.launchers import harness

_REACHER = ("--env_name=reacher", "--dry_run")


def test_what_was_tuned_for_an_environment_is_used_and_told(capsys):
  out = harness.run(capsys, "train", *_REACHER).out
  assert "tuned for sac on reacher: discount=0.95, tau=0.01" in out


@pytest.mark.slow
def test_what_the_command_line_gives_is_not_tuned(capsys):
  out = harness.run(
    capsys, "train", *_REACHER, "--discount=0.9", "--nolayer_norm"
  ).out
  assert "tuned for sac on reacher: tau=0.01" in out
  assert "discount" not in out and "layer_norm" not in out


def test_a_fixed_temperature_has_nothing_tuned(capsys):
  out = harness.run(capsys, "train", *_REACHER, "--nolearn_temperature").out
  assert "tuned for sac on reacher: discount=0.95, tau=0.01" in out
  assert "temperature" not in out and "entropy" not in out


def test_other_environments_keep_the_learners_own_settings(capsys):
  outcome = harness.run(capsys, "train", "--env_name=point_maze", "--dry_run")
  assert outcome.code == 0 and "tuned" not in outcome.out


def test_a_run_that_goes_on_keeps_its_settings(capsys, tmp_path):
  RunDirectory(tmp_path / "run").begin({"discount": 0.9})
  outcome = harness.run(
    capsys, "train", *_REACHER, "--resume", f"--logdir={tmp_path / 'run'}"
  )
  assert outcome.code == 0 and "tuned" not in outcome.out


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["train", "train_pbt"])
def test_what_no_controller_searches_is_tuned_for_pbt_too(capsys, launcher):
  out = harness.run(
    capsys, launcher, "--env_name=halfcheetah", "--dry_run"
  ).out
  assert "tuned for sac on halfcheetah: normalize_observations=True\n" in out


@pytest.mark.slow
def test_what_a_controller_searches_is_not_tuned(capsys):
  outcome = harness.run(capsys, "train_pbt", *_REACHER, "--population_size=2")
  assert outcome.code == 0 and "tuned" not in outcome.out
