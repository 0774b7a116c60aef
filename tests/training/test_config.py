"""Tests of the schedule that follows from settings."""

import math

import pytest

from qdrl_haiku import training
from qdrl_haiku.training import config as config_lib

_RATES = {"num_envs": 8, "grad_updates_per_step": 1.0, "batches_per_update": 1}


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


# Twelve steps with six critic steps are three rounds of TD3, eight none whole.
_ROUNDS = {"num_envs": 4, "grad_updates_per_step": 0.25}
_MANY = {
  "num_envs": 256, "replay_capacity": 100, "batch_size": 10,
  "min_replay_size": 10,
}  # fmt: skip


@pytest.mark.parametrize(
  ("batches_per_update", "interval", "settings", "message"),
  [
    (1, 1001, {"num_envs": 8}, r"1001.*multiple of 8.*1000 or 1008"),
    (1, 5, {"num_envs": 8}, r"interval 5 .* The nearest: 8\.$"),
    (2, 12, _ROUNDS, "2 critic steps per update"),
    (1, 256, _MANY, "replay_capacity 100 .* 256"),
    (
      1, 8 * 10**6, {"grad_updates_per_step": 1000},
      "makes 8000000000 critic steps, which",
    ),
  ],
)  # fmt: skip
def test_an_interval_that_makes_no_schedule_is_refused(
  batches_per_update, interval, settings, message
):
  with pytest.raises(ValueError, match=message):
    _schedule(batches_per_update, perturbation_interval=interval, **settings)


@pytest.mark.parametrize(
  ("num_timesteps", "num_envs", "batches_per_update", "expected"),
  [
    (14000, 8, 1, None), (100_000, 8, 2, None), (96, 8, 1, None),
    (8, 8, 1, 8), (960, 8, 1, 48), (16_000, 8, 1, 800),
  ],
)  # fmt: skip
def test_the_default_interval_cuts_a_run_into_whole_generations_about_twenty(
  num_timesteps, num_envs, batches_per_update, expected
):
  interval = training.default_interval(
    num_timesteps,
    num_envs=num_envs,
    grad_updates_per_step=1.0,
    batches_per_update=batches_per_update,
  )
  assert num_timesteps % interval == 0
  assert expected in (None, interval)
  plan = _schedule(
    batches_per_update, num_envs=num_envs, perturbation_interval=interval
  )
  assert plan.num_iterations >= 1


@pytest.mark.parametrize(
  ("num_timesteps", "settings", "message"),
  [
    (1001, {}, "num_timesteps 1001 .*; 960 can"),
    (1000, {"num_envs": 0}, "num_envs must be"),
    (1000, {"grad_updates_per_step": math.nan}, "grad_updates_per_step must"),
  ],
)
def test_the_default_interval_refuses_what_makes_no_iteration(
  num_timesteps, settings, message
):
  with pytest.raises(ValueError, match=message):
    training.default_interval(num_timesteps, **(_RATES | settings))
