"""Tests of the schedule that follows from settings, and of what is searched."""

from typing import NamedTuple

import pytest

from qdrl_haiku import controllers, learners, training
from qdrl_haiku.training import config as config_lib
from tests.training import common


def _schedule(batches_per_update=1, **settings):
  return config_lib.training_iterations(
    training.TrainingConfig(**settings),
    common.quadratic_learner(batches_per_update=batches_per_update))


@pytest.mark.parametrize(
  ("num_envs", "rate", "batches_per_update", "expected"),
  [
    # (steps of each environment, calls of update) per iteration.
    (8, 1.0, 1, (1, 8)),
    (64, 1 / 128, 1, (2, 1)),
    (8, 0.3, 1, (5, 12)),
    # TD3 updates in rounds of two critic steps, or of three.
    (8, 1.0, 2, (1, 4)),
    (3, 1.0, 2, (2, 3)),
    (8, 1.0, 3, (3, 8))])
def test_an_iteration_is_the_shortest_with_whole_updates(
  num_envs, rate, batches_per_update, expected
):
  num_env_steps, num_updates = expected
  interval = 30 * num_env_steps * num_envs
  plan = _schedule(
    batches_per_update, num_envs=num_envs, grad_updates_per_step=rate,
    perturbation_interval=interval)
  assert plan == (30, num_env_steps, num_updates)
  critic_steps = 30 * num_updates * batches_per_update
  assert critic_steps == pytest.approx(rate * interval, rel=1e-12)


# Twelve steps with six critic steps are three rounds of TD3, eight none whole.
_ROUNDS = {"num_envs": 4, "grad_updates_per_step": 0.25}
_MANY = {
  "num_envs": 32, "replay_capacity": 100, "batch_size": 10,
  "min_replay_size": 10, "grad_updates_per_step": 1 / 128}


@pytest.mark.parametrize(
  ("batches_per_update", "interval", "settings", "message"),
  [
    (1, 1001, {}, r"1001.*multiple of 8.*1000 or 1008"),
    (2, 12, _ROUNDS, r"2 critic steps per update.* The nearest: 8 or 16\.$"),
    (1, 128, _MANY, "replay_capacity=100 .* 128")])
def test_an_interval_that_makes_no_schedule_is_refused(
  batches_per_update, interval, settings, message
):
  with pytest.raises(ValueError, match=message):
    _schedule(batches_per_update, perturbation_interval=interval, **settings)


@pytest.mark.parametrize(("num_timesteps", "batches_per_update", "expected"), [
  (8, 1, 8), (960, 1, 48), (16_000, 1, 800), (14_000, 3, 0), (1001, 1, 0)])
def test_the_default_interval_cuts_a_run_into_whole_generations_about_twenty(
  num_timesteps, batches_per_update, expected
):
  config = training.TrainingConfig(num_envs=8)
  learner = common.quadratic_learner(batches_per_update=batches_per_update)
  if not expected:
    with pytest.raises(ValueError, match=f"{num_timesteps} .*; [0-9]*0 can"):
      training.default_training_interval(config, learner, num_timesteps)
    return
  interval = training.default_training_interval(config, learner, num_timesteps)
  assert interval == expected


_SAC = learners.sac(2, 2).hyperparams


def test_by_default_rates_discount_and_rewards_are_searched_near_their_values():
  space = training.search_space(_SAC)
  for name, range_ in space.items():
    if name == "reward_scaling" or name.endswith("learning_rate"):
      assert isinstance(range_, controllers.LogUniform)
      low, value, high = range_.low, _SAC[name], range_.high
    elif name == "discount":
      assert isinstance(range_, controllers.OneMinusLogUniform)
      low, value, high = 1 - range_.high, 1 - _SAC[name], 1 - range_.low
    else:
      assert range_ == controllers.Fixed(_SAC[name])
      continue
    # Bounds have one or two digits, such as 2e-4 to 5e-4 around 3e-4.
    assert low / value == pytest.approx(0.6, rel=0.12)
    assert high / value == pytest.approx(1.6, rel=0.12)
  given = training.search_space(_SAC, given={"discount": 0.9})
  assert given["discount"] == controllers.Fixed(0.9)
  assert isinstance(given["policy_learning_rate"], controllers.LogUniform)


class _Rates(NamedTuple):
  discount: float
  policy: dict[str, float]


def test_a_space_is_a_tree_like_the_hyperparameters():
  rates = _Rates(discount=0.9, policy={"speed": 2.0, "tau": 0.1})
  space = training.search_space(rates, ["policy/speed:uniform:0:1"])
  assert space == _Rates(
    controllers.Fixed(0.9),
    {"speed": controllers.Uniform(0, 1), "tau": controllers.Fixed(0.1)})
  with pytest.raises(ValueError, match="'policy/sped'.*'policy/speed'"):
    training.search_space(rates, ["policy/sped:uniform:0:1"])
  with pytest.raises(ValueError, match="given names .* 'policy/speed'"):
    training.search_space(rates, given={"policy/sped": 0.5})


def test_what_a_learner_declares_is_searched():
  declared = {
    "speed": learners.Hyperparameter(
      2.0, "how fast", search=controllers.Uniform(1, 3)),
    "discount": learners.Hyperparameter(0.9, "of its own")}
  hyperparams = {"speed": 2.0, "discount": 0.9, "tau": 0.1}
  space = training.search_space(hyperparams, declared=declared)
  # What it says of a discount counts, not what ours do.
  assert space == {
    "speed": controllers.Uniform(1, 3), "discount": controllers.Fixed(0.9),
    "tau": controllers.Fixed(0.1)}
