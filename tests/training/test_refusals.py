"""Tests of what is refused, by the entry points that users call."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import pytest

from qdrl_haiku import controllers, learners, map_elites, skills, training
from tests.training import common

_PBT = controllers.pbt(controllers.PBTConfig(), common.SPACE)


def _quadratic(**hyperparams):
  learner = common.quadratic_learner()
  return learner._replace(hyperparams=learner.hyperparams | hyperparams)


def _reading_truncations():
  """A learner that reads an extra, and counts in its metrics."""
  learner = _quadratic(discount=0.9)

  def update(state, hyperparams, transitions, key):
    ends = jnp.sum(transitions.extras["truncation"])
    state, metrics = learner.update(state, hyperparams, transitions, key)
    return state, metrics | {"ends": ends}

  return learner._replace(update=update)


def _rewarding_itself():
  config = learners.DIAYNConfig(discriminator_input="observation")
  return learners.diayn(
    learners.sac(5, 2), 2, skills.categorical(3), config=config
  )


def _with_members(**settings):
  """A repertoire with members that train."""
  setup = common.repertoire_setup()
  config = dataclasses.replace(setup.config, **settings)
  return setup._replace(config=config)


_variations = functools.partial(common.repertoire_setup, with_pbt=False)


def _dreaming(setup):
  return map_elites.genetic_emitter(common.vary, 2)._replace(needs=("dreams",))


def _swapping(setup):
  emitter = map_elites.genetic_emitter(common.vary, 2)
  return emitter._replace(ask=lambda *args: emitter.ask(*args)[::-1])


_SETUPS = {
  # Settings of one thing that has no effect beside another.
  **{
    f"{name} without a controller": (
      common.setup(**{name: value}), f"{name}={value} .*without a contr.*at {x}"
    )
    for name, value, x in (
      ("burn_in_period", 16, 0), ("fitness_window", 2, 1),
      ("inherit_replay", True, False),
    )
  },
  **{
    f"{name} with a controller {i} that replaces none": (
      common.setup(controller, **{name: value}),
      f"{name}={value} has no effect.*replaces non-finite members alone",
    )
    for name, value in (("burn_in_period", 16), ("inherit_replay", True))
    for i, controller in enumerate((
      controllers.random_search(common.SPACE),
      controllers.pbt(controllers.PBTConfig(exploit="none"), common.SPACE),
      controllers.pbt(controllers.PBTConfig(num_replaced=0), common.SPACE),
      controllers.pb2(controllers.PB2Config(num_replaced=0), common.SPACE),
    ))
  },
  "burn-in with a repertoire": (
    _with_members(burn_in_period=16), "burn_in_period=16 .*map_elites.*at 0"
  ),
  "window with a repertoire": (
    _with_members(fitness_window=2), "fitness_window=2 .*map_elites.*at 1"
  ),
  "fitness with a repertoire": (
    _with_members(fitness="skill"), "fitness='skill' .*at 'episode_return'"
  ),
  "evaluation with a repertoire": (
    _with_members()._replace(evaluate=lambda *_: None),
    "evaluate has no effect: with map_elites .*leave it at None",
  ),
  "samples without members": (
    _variations(num_replaced_by_samples=1),
    "num_replaced_by_samples have no effect: .*no members that train",
  ),
  "population without members": (
    _variations()._replace(config=common.setup().config),
    "population_size=4 .*no members that train.*at 1",
  ),
  "members without a controller": (
    _with_members()._replace(controller=None), "needs a controller"
  ),
  # Emitters.
  "unknown emitter": (_variations(emitter="gaa"), "did you mean"),
  "unknown need": (
    _variations(emitter=_dreaming), "needs dreams, which isn't known"
  ),
  "wrong order": (
    _variations(emitter=_swapping), "returns .state, genotypes.: swap them"
  ),
  # Learners, and what they learn from.
  "wrong observe": (
    common.repertoire_setup()._replace(
      learner=_quadratic()._replace(observe=lambda state, observation: ())
    ),
    "learner's observe returns differs",
  ),
  "no hyperparameters": (
    common.setup(learner=_quadratic()._replace(hyperparams={})),
    "hyperparams={} have no number",
  ),
  "nonsense": (
    common.setup(learner=_quadratic(reward_scaling=0.0)),
    "hyperparameter reward_scaling=0.0 makes no sense; .* above 0",
  ),
  "underflow": (
    common.setup(learner=_quadratic(reward_scaling=1e-50)),
    "reward_scaling=1e-50 makes no sense; .*float32 holds none below",
  ),
  "unknown extra": (
    common.setup(replay_extras=("skill",)),
    "name skill, which transitions .* don't have; name some of truncation",
  ),
  **{
    f"extra that isn't stored, {n} steps": (
      common.setup(learner=_reading_truncations(), n_step=n),
      "replay_extras=.'truncation',.. names",
    )
    for n in (1, 3)
  },
  "sums without a discount": (
    common.setup(n_step=2), "n_step=2 sums rewards by.*are learning_rate, par"
  ),
  "sums of a learner's own rewards": (
    common.setup(learner=_rewarding_itself(), n_step=2),
    "n_step=2, but the learner rewards single steps by itself",
  ),
  # Numbers.
  "no schedule": (
    common.setup(perturbation_interval=17), "perturbation_interval 17"
  ),
  "too many parents": (
    common.setup(
      controllers.pbt(
        controllers.PBTConfig(num_parents=3, num_replaced=3), common.SPACE
      )
    ),
    "population_size=4",
  ),
  "too many first steps": (
    _variations(num_initial_genotypes=2**28),
    f"steps are {10 * 2**28}, which must",
  ),
}  # fmt: skip


@pytest.mark.parametrize("case", _SETUPS.values(), ids=_SETUPS)
def test_a_setup_is_refused_before_anything_is_computed(case):
  setup, message = case
  with pytest.raises(ValueError, match=message):
    common.shapes(setup)


def test_an_extra_that_is_stored_can_be_read():
  common.shapes(
    common.setup(
      learner=_reading_truncations(), replay_extras=("truncation",), n_step=3
    )
  )


def test_a_generation_may_have_more_steps_than_an_int32_counts():
  setup = common.setup(
    population_size=3000, perturbation_interval=2**21, grad_updates_per_step=0.5
  )
  step = functools.partial(common.step, setup)
  _, report = jax.eval_shape(step, common.shapes(setup), common.KEY)
  assert report.evaluation_steps.shape == (3000, 2)


_SIZES = (
  "population_size", "num_envs", "perturbation_interval", "batch_size",
  "replay_capacity", "min_replay_size", "num_eval_episodes", "fitness_window",
)  # fmt: skip
_LARGE = {"replay_capacity": 50, "min_replay_size": 10, "batch_size": 10}


@pytest.mark.parametrize(
  ("settings", "message"),
  [
    *(({name: 0}, f"{name} must be .* got 0") for name in _SIZES),
    *(({name: -3}, f"{name} must be .* got -3") for name in _SIZES[:2]),
    *(
      ({"grad_updates_per_step": x}, "grad_updates_per_step must be")
      for x in (0.0, -1.0, math.nan, math.inf, 1e-8)
    ),
    ({"burn_in_period": -1}, "burn_in_period .* got -1"),
    ({"n_step": 0}, "n_step must be at least 1"),
    (
      _LARGE | {"n_step": 4, "num_envs": 16},
      "replay_capacity 50 doesn't hold n_step=4.*of 16 env",
    ),
    *(
      (_LARGE | {name: 51}, f"{name} 51 .*replay_capacity 50")
      for name in ("min_replay_size", "batch_size")
    ),
  ],
)
def test_settings_of_training_out_of_their_range_are_refused(settings, message):
  with pytest.raises(ValueError, match=message):
    training.TrainingConfig(**settings)
