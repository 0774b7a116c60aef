"""Tests of settings and of the schedule that follows from them."""

import math

import pytest

from qdrl_haiku import training
from qdrl_haiku.training import config as config_lib


def _schedule(batches_per_update=1, **settings):
  return config_lib.iterations(
    training.TrainingConfig(**settings), batches_per_update
  )


@pytest.mark.parametrize(
  ("num_envs", "rate", "batches_per_update", "expected"),
  [
    # (steps of each environment, calls of update) per iteration.
    (8, 1.0, 1, (1, 8)),
    (1, 1.0, 1, (1, 1)),
    (64, 1 / 16, 1, (1, 4)),
    (64, 1 / 128, 1, (2, 1)),
    (8, 0.3, 1, (5, 12)),
    (3, 2.0, 1, (1, 6)),
    # TD3 updates in rounds of two critic steps, or of three.
    (8, 1.0, 2, (1, 4)),
    (1, 1.0, 2, (2, 1)),
    (3, 1.0, 2, (2, 3)),
    (8, 1.0, 3, (3, 8)),
  ],
)
def test_an_iteration_is_the_shortest_with_whole_updates(
  num_envs, rate, batches_per_update, expected
):
  num_env_steps, num_updates = expected
  interval = 30 * num_env_steps * num_envs
  plan = _schedule(
    batches_per_update,
    num_envs=num_envs,
    grad_updates_per_step=rate,
    perturbation_interval=interval,
  )
  assert plan == (30, num_env_steps, num_updates)
  critic_steps = 30 * num_updates * batches_per_update
  assert critic_steps == pytest.approx(rate * interval, rel=1e-12)


def test_an_interval_of_broken_iterations_is_refused_with_the_nearest():
  with pytest.raises(ValueError, match=r"1001.*multiple of 8.*1000 or 1008"):
    _schedule(perturbation_interval=1001, num_envs=8)


def test_an_interval_below_one_iteration_names_only_what_is_possible():
  with pytest.raises(ValueError, match=r"interval 5 .* The nearest: 8\.$"):
    _schedule(perturbation_interval=5, num_envs=8)


def test_a_fraction_of_a_td3_round_is_refused_naming_the_round():
  # Twelve steps with six critic steps are three rounds, eight are none whole.
  settings = {"num_envs": 4, "grad_updates_per_step": 0.25}
  assert _schedule(2, perturbation_interval=16, **settings) == (2, 2, 1)
  with pytest.raises(ValueError, match="2 critic steps per update"):
    _schedule(2, perturbation_interval=12, **settings)


def test_a_buffer_smaller_than_an_iteration_is_refused():
  with pytest.raises(ValueError, match="replay_capacity 100 .* 256"):
    _schedule(
      num_envs=256,
      perturbation_interval=256,
      replay_capacity=100,
      batch_size=10,
      min_replay_size=10,
    )


@pytest.mark.parametrize(
  "name",
  [
    "population_size",
    "num_envs",
    "perturbation_interval",
    "batch_size",
    "replay_capacity",
    "min_replay_size",
    "num_eval_episodes",
    "fitness_window",
  ],
)
@pytest.mark.parametrize("value", [0, -3])
def test_sizes_below_one_are_refused_by_name(name, value):
  with pytest.raises(ValueError, match=f"{name} must be .* got {value}"):
    training.TrainingConfig(**{name: value})


@pytest.mark.parametrize("rate", [0.0, -1.0, math.nan, math.inf, 1e-8])
def test_rates_that_make_no_iteration_are_refused(rate):
  with pytest.raises(ValueError, match="grad_updates_per_step must be"):
    training.TrainingConfig(grad_updates_per_step=rate)


def test_a_negative_burn_in_is_refused():
  with pytest.raises(ValueError, match="burn_in_period .* got -1"):
    training.TrainingConfig(burn_in_period=-1)


@pytest.mark.parametrize("name", ["min_replay_size", "batch_size"])
def test_more_than_the_buffer_holds_is_refused(name):
  settings = {"min_replay_size": 10, "batch_size": 10} | {name: 51}
  with pytest.raises(ValueError, match=f"{name} 51 .*replay_capacity 50"):
    training.TrainingConfig(replay_capacity=50, **settings)


@pytest.mark.parametrize(
  ("num_timesteps", "num_envs", "rate", "batches_per_update"),
  [(14000, 8, 1.0, 1), (100_000, 8, 1.0, 2), (96, 8, 1.0, 1), (8, 8, 1, 1)],
)
def test_the_default_interval_cuts_a_run_into_whole_generations(
  num_timesteps, num_envs, rate, batches_per_update
):
  interval = training.default_interval(
    num_timesteps,
    num_envs=num_envs,
    grad_updates_per_step=rate,
    batches_per_update=batches_per_update,
  )
  assert num_timesteps % interval == 0
  plan = _schedule(
    batches_per_update,
    num_envs=num_envs,
    grad_updates_per_step=rate,
    perturbation_interval=interval,
  )
  assert plan.num_iterations >= 1


def test_the_default_interval_makes_about_twenty_generations():
  interval = training.default_interval(
    16_000, num_envs=8, grad_updates_per_step=1.0, batches_per_update=1
  )
  assert interval == 800


def test_a_run_that_cannot_be_cut_is_refused_with_a_number_that_can():
  settings = {
    "num_envs": 8, "grad_updates_per_step": 1.0, "batches_per_update": 1
  }
  with pytest.raises(ValueError, match="num_timesteps 1001 .*; 960 can"):
    training.default_interval(1001, **settings)
  assert training.default_interval(960, **settings) == 48


@pytest.mark.parametrize(
  ("name", "value"),
  [("num_envs", 0), ("num_envs", -8), ("grad_updates_per_step", math.nan)],
)
def test_the_default_interval_refuses_what_makes_no_iteration(name, value):
  settings = {
    "num_envs": 8, "grad_updates_per_step": 1.0, "batches_per_update": 1
  }
  with pytest.raises(ValueError, match=f"{name} must be"):
    training.default_interval(1000, **(settings | {name: value}))
