"""Tests of flags that are checked against a run, or where it will be."""

import json

import pytest
from qdrl_haiku.cli.evaluation_flags import EvaluationFlags

from qdrl_haiku.cli import launch, skill_flags, training_runs
from qdrl_haiku.cli.train import TrainFlags


@pytest.fixture
def logdir(tmp_path):
  """A run whose agents aren't the default ones."""
  settings = TrainFlags(activation="tanh", hidden_layer_sizes=("4", "4"))
  (tmp_path / "config.json").write_text(json.dumps(settings.settings()))
  return str(tmp_path)


def _refuse(logdir, **values):
  given = EvaluationFlags(given=frozenset(values), **values)
  launch.refuse_other_settings(given, logdir, skill_flags.of_agents())


@pytest.mark.parametrize(
  ("name", "value"),
  [
    ("activation", "relu"),
    ("hidden_layer_sizes", ("256", "256")),
    ("layer_norm", True),
    ("learner", "td3"),
    ("normalize_observations", False),
    ("num_skills", 3),
    ("discriminator_input", "observation"),
  ],
)
def test_agents_are_not_looked_at_as_others(logdir, name, value):
  with pytest.raises(ValueError, match=f"--{name}=.*, but the agents in "):
    _refuse(logdir, **{name: value})


def test_what_a_run_had_may_be_said_again(logdir):
  _refuse(logdir, activation="tanh", hidden_layer_sizes=("4", "4"))


def test_agents_may_be_looked_at_in_other_environments(logdir):
  _refuse(
    logdir, env_name="ant", backend="mjx", episode_length=7, num_eval_episodes=9
  )


@pytest.mark.parametrize("suffix", ["x/../../../y", "/tmp/y", "a/"])
def test_a_suffix_leads_nowhere_else(suffix):
  with pytest.raises(ValueError, match=f"--suffix={suffix} would lead out of"):
    training_runs._default_logdir(TrainFlags(suffix=suffix), "sac")


def test_a_suffix_ends_the_directorys_name():
  logdir = training_runs._default_logdir(TrainFlags(suffix="my.run"), "sac")
  assert logdir.startswith("logs/") and logdir.endswith("-my.run")
