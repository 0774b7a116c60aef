"""Tests of ranges that widen where an agent does well."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qdrl_haiku import environments, training, types
from qdrl_haiku.programs import experiment
from qdrl_haiku.training import curriculum
from tests.training import common

_RANGES = ("action_noise:uniform:0:1", "observation_noise:uniform:0:1")
_WIDENED = curriculum.CurriculumConfig(
  widen_above=-1e3, boundary_episodes=2, boundary_step=0.25)


def setup(**settings):
  """Agents whose episodes last five steps, in two randomised ranges."""
  env = environments.create(
    common.Drift(), episode_length=5, randomize=_RANGES)
  found = common.setup(
    common.scripted(), **{"curriculum": _WIDENED} | settings)
  return found._replace(env=env, eval_env=env)


_trainer = functools.cache(lambda: common.Trainer(setup()))


def test_boundaries_move_by_the_mean_return_of_enough_episodes():
  config = curriculum.CurriculumConfig(
    widen_above=10.0, narrow_below=5.0, boundary_step=0.4, boundary_episodes=2)
  before = curriculum.Curriculum(
    reach=jnp.array([[0.0, 0.5, 0.5, 0.8, 0.2]]),
    returns=jnp.array([[9.0, 9.0, 0.0, 0.0, 3.0]]),
    episodes=jnp.array([[1, 1, 0, 0, 1]]))
  after = curriculum.judge_boundaries(
    config, before, jnp.array([[11.0, 1.0, 20.0, 60.0, 0.0]]),
    jnp.array([[1, 1, 1, 3, 1]]))
  # Means of 10, of 5, too few episodes, beyond the end, and below 0.
  np.testing.assert_allclose(after.reach, [[0.4, 0.1, 0.5, 1.0, 0.0]], 1e-6)
  np.testing.assert_array_equal(after.returns, [[0, 0, 20, 0, 0]])
  np.testing.assert_array_equal(after.episodes, [[0, 0, 1, 0, 0]])


def test_by_default_no_boundary_moves_back():
  config = curriculum.CurriculumConfig(widen_above=10.0, boundary_episodes=1)
  before = curriculum.first_curriculum(1, 1)
  before = before._replace(reach=jnp.full((1, 1), 0.5))
  after = curriculum.judge_boundaries(
    config, before, jnp.full((1, 1), -1e6), jnp.ones((1, 1), jnp.int32))
  assert after.reach == 0.5


def test_returns_of_later_whole_episodes_at_a_boundary_are_counted():
  told = {
    "boundary": jnp.array([1, 1, 1, 0, -1, 1, 1]),
    "return": jnp.array([1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0]),
    "episodes": jnp.array([2, 2, 3, 4, 5, 1, 2])}
  transitions = types.Transition(
    jnp.zeros(7), jnp.zeros(7), jnp.zeros(7),
    # Terminated, goes on, truncated, ... none, a first one, and not finite.
    discount=jnp.array([0.0, 1, 1, 1, 0, 0, 0]), next_observation=jnp.zeros(7),
    extras={
      "truncation": jnp.array([0.0, 0, 1, 1, 0, 0, 0]), "curriculum": told})
  transitions = jax.tree.map(lambda x: x[None, :, None], transitions)
  is_finite = jnp.arange(7)[None, :, None] < 6
  returns, episodes = curriculum.boundary_returns(transitions, is_finite, 3)
  np.testing.assert_array_equal(returns, [[8, 5, 0]])
  np.testing.assert_array_equal(episodes, [[1, 2, 0]])


def test_agents_begin_where_nothing_is_changed_and_their_ranges_widen():
  states, reports = _trainer().history()
  reach = [x.members.curriculum.reach for x in states]
  assert not reach[0].any()
  assert (np.diff(reach, axis=0) >= 0).all()
  assert (reach[-1] > 0).any()
  for before, report in zip(reach[:-1], reports, strict=True):
    for i, name in enumerate(("action_noise/high", "observation_noise/high")):
      np.testing.assert_array_equal(
        report.metrics[f"curriculum/{name}"], before[:, i])
  env_states = states[-1].members.environment
  values = env_states.pipeline_state.info["randomization"]["values"]
  # From the first step on what is drawn is in an agent's own range.
  begun = env_states.info["steps"] > 0
  widest = reach[-1].max(axis=1)[:, None]
  assert (values["action_noise"] <= widest + 1e-6)[begun].all()


def test_a_child_has_its_parents_curriculum():
  trainer = _trainer()
  reach = jnp.arange(8.0).reshape(4, 2) / 8
  first = curriculum.Curriculum(reach, 10 + reach, jnp.zeros((4, 2), jnp.int32))
  asked = {"parent": jnp.array([0.0, 1, 2, 0])}
  state = common.changed(
    trainer.first, trainer.first.hyperparams | asked, curriculum=first)
  after = trainer.step(state)[0].members.curriculum
  common.assert_bits_equal(
    common.member(after, 3), common.member(after, 0))
  assert common.differ(common.member(after, 2), common.member(after, 0))


def test_without_a_curriculum_there_is_none():
  plain = curriculum.CurriculumConfig()
  state = common.shapes(setup(curriculum=plain))
  assert state.members.curriculum == ()


@pytest.mark.parametrize(("settings", "error"), [
  ({"narrow_below": 3.0}, "narrow_below=3 must be below widen_above=None"),
  ({"narrow_below": 3.0, "widen_above": 2.0}, "must be below widen_above=2.0"),
  ({"boundary_step": 0.5}, "boundary_step=0.5 has no effect without widen_ab")])
def test_nonsense_is_refused(settings, error):
  with pytest.raises(ValueError, match=error):
    curriculum.CurriculumConfig(**settings)


def test_ranges_without_an_end_are_refused():
  env = environments.create(
    common.Drift(), episode_length=5, randomize=["action_noise:fixed:0.1"])
  with pytest.raises(ValueError, match="widen_above=-1000 has no effect"):
    training.init(setup()._replace(env=env, eval_env=env), common.KEY)


def _configured(**changes):
  """Returns an agent's setup of a configuration with a curriculum."""
  config = experiment.Config(
    environment=environments.EnvironmentConfig(
      "point_maze", randomize=("action_noise:uniform:0:1",)),
    training=training.TrainingConfig(curriculum=_WIDENED))
  return experiment.build(dataclasses.replace(config, **changes))


def test_a_boundary_that_is_also_searched_is_refused():
  with pytest.raises(ValueError, match="env/action_noise/high is among the"):
    training.init(_configured(
      search_space=("env/action_noise/high:uniform:0:1",)), common.KEY)


def test_without_randomisation_a_curriculum_is_refused():
  with pytest.raises(ValueError, match="widen_above.*no range of --randomize"):
    _configured(environment=environments.EnvironmentConfig("point_maze"))
