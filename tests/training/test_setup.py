"""Tests of what is refused of a setup, however it was made."""

import functools

import jax
import pytest

from qdrl_haiku import controllers, training
from qdrl_haiku.training import config as config_lib
from qdrl_haiku.training import setup as setup_lib
from tests.training import common, test_illumination


def _init(setup):
  jax.eval_shape(
    functools.partial(training.init_population, setup), jax.random.key(0)
  )


@pytest.mark.parametrize(
  ("value", "message"),
  [
    (0.0, "hyperparameter reward_scaling=0.0 makes no sense; .* above 0"),
    (1e-50, "reward_scaling=1e-50 makes no sense; .*float32 holds none below"),
  ],
)
def test_a_learners_hyperparameter_that_makes_no_sense_is_refused(
  value, message
):
  learner = common.quadratic_learner()
  learner = learner._replace(
    hyperparams=learner.hyperparams | {"reward_scaling": value}
  )
  with pytest.raises(ValueError, match=message):
    _init(common.setup(learner=learner))


@pytest.mark.parametrize(
  "controller",
  [
    controllers.random_search(common.SPACE),
    controllers.pbt(controllers.PBTConfig(exploit="none"), common.SPACE),
    controllers.pbt(controllers.PBTConfig(num_replaced=0), common.SPACE),
    controllers.pb2(controllers.PB2Config(num_replaced=0), common.SPACE),
  ],
)
@pytest.mark.parametrize(
  ("name", "value"),
  [("burn_in_period", 16), ("fitness_window", 2), ("inherit_replay", True)],
)
def test_settings_of_replacements_are_refused_where_nobody_is_replaced(
  controller, name, value
):
  with pytest.raises(ValueError, match=f"{name}={value} has no effect"):
    _init(common.setup(controller, **{name: value}))


def test_a_generation_may_have_more_steps_than_an_int32_counts():
  setup = common.setup(
    population_size=3000, perturbation_interval=2**21, grad_updates_per_step=0.5
  )
  population = jax.eval_shape(
    functools.partial(training.init_population, setup), jax.random.key(0)
  )
  _, report = jax.eval_shape(
    functools.partial(training.train_generation, setup),
    population,
    jax.random.key(0),
  )
  assert report.evaluation_steps.shape == (3000, 2)


def test_more_critic_steps_than_an_int32_counts_are_refused():
  config = config_lib.TrainingConfig(
    perturbation_interval=8 * 10**6, grad_updates_per_step=1000
  )
  with pytest.raises(ValueError, match="makes 8000000000 critic steps, which"):
    config_lib.iterations(config, 1)


def test_a_first_evaluation_of_more_steps_than_an_int32_counts_is_refused():
  setup = test_illumination.setup()
  plan = setup.map_elites._replace(num_initial_genotypes=2**28)
  # Two episodes of five steps each.
  with pytest.raises(ValueError, match=f"steps are {10 * 2**28}, which must"):
    setup_lib.check(setup._replace(map_elites=plan))
