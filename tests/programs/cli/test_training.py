"""Tests of the configuration that flags and a run to be resumed ask for."""

import pytest

from qdrl_haiku import config as config_lib
from qdrl_haiku.programs import experiment
from qdrl_haiku.programs.cli import training
from qdrl_haiku.programs.cli.launch import Given
from qdrl_haiku.programs.storage.directory import RunDirectory

_MAZE = {"env_name": "point_maze", "learner": "td3"}


def _resumed(program, logdir, begun, **changes):
  """The configuration with which a run goes on."""
  config = program.configure(_MAZE | begun)
  RunDirectory(logdir).begin(
    config_lib.config_tree_values(config) | {"launcher": f"{program.name}.py"})
  given = {"resume": True, "logdir": str(logdir)} | changes
  return training.configure_training_from_flags(
    program, Given(given, frozenset(given)))


def test_former_names_of_settings_are_understood():
  former = {"num_seeds": 3, "eval_interval": 9, "of_the_past": 1}
  settings = experiment.TRAIN.configure(former).training
  assert (settings.population_size, settings.perturbation_interval) == (3, 9)


def test_steps_take_the_place_of_generations(tmp_path):
  config = _resumed(
    experiment.TRAIN_ME_PBT, tmp_path, {"num_generations": 10},
    num_timesteps=20_000)
  assert config.run.num_generations is None
  assert config.run.num_timesteps == 20_000
  assert config.environment.env_name == "point_maze"


def test_a_learner_named_again_keeps_its_settings(tmp_path):
  config = _resumed(
    experiment.TRAIN, tmp_path, {"hidden_layer_sizes": (64, 64)},
    learner="td3", num_timesteps=20_000)
  assert config.learner.network.hidden_layer_sizes == (64, 64)


def test_what_has_no_effect_on_the_run_is_refused(tmp_path):
  with pytest.raises(ValueError, match="on_divergence=stop has no effect"):
    _resumed(
      experiment.TRAIN_ME_PBT, tmp_path, {"emitter": "ga"},
      on_divergence="stop")
