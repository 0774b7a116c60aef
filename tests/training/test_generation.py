"""Tests of one generation: learning, deciding, inheriting."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from qdrl_haiku import controllers
from tests.training import common


def _returns(report):
  """[P], of what was reported."""
  return np.asarray(report.evaluation.returns).mean(axis=1)


@pytest.fixture(scope="module")
def trainer():
  return common.scripted_trainer()


@pytest.fixture(scope="module")
def undisturbed(trainer):
  """One generation in which everybody survives."""
  return trainer.step(trainer.first)


@pytest.fixture(scope="module")
def replaced(trainer):
  """The same, after which members 1 and 2 are children of member 0."""
  return trainer.step(trainer.first, (0, 0, 0, 3))


def test_survivors_are_those_of_an_undisturbed_run(undisturbed, replaced):
  for i in (0, 3):
    common.assert_bits_equal(
      common.member(replaced[0].members, i),
      common.member(undisturbed[0].members, i))


def test_a_child_has_its_parents_learner_alone(trainer, undisturbed, replaced):
  before, after = undisturbed[0].members, replaced[0].members
  parent = common.member(before.learner, 0)
  for child in (1, 2):
    common.assert_bits_equal(common.member(after.learner, child), parent)
    assert common.differ(common.member(before.learner, child), parent)
    for part in ("replay", "environment"):
      common.assert_bits_equal(
        common.member(getattr(after, part), child),
        common.member(getattr(before, part), child))
  # Its hyperparameters are what the controller says; the report has the old.
  old = np.asarray(trainer.first.hyperparams["learning_rate"])
  new, told = (x.hyperparams["learning_rate"] for x in replaced)
  np.testing.assert_array_equal(new, [old[0], 2 * old[0], 2 * old[0], old[3]])
  np.testing.assert_array_equal(told, old)


def test_siblings_go_different_ways(trainer):
  # Identical in everything but what they draw from now on.
  first, twins = trainer.first, jnp.zeros(4, jnp.int32)
  state = common.changed(
    first, controllers.inherit(first.hyperparams, twins),
    **controllers.inherit(first.members, twins)._asdict())
  members = trainer.step(state)[0].members
  assert len(np.unique(members.learner.point, axis=0)) == 4
  actions = members.replay.storage.action.reshape(4, -1)
  assert len(np.unique(actions, axis=0)) == 4


def test_fitness_is_the_mean_of_the_window(trainer, replaced):
  state, report = replaced
  returns = [_returns(report)]
  np.testing.assert_array_equal(report.fitness, returns[0])
  state, second = trainer.step(state)
  returns.append(_returns(second))
  expected = (returns[0][[0, 0, 0, 3]] + returns[1]) / 2
  np.testing.assert_allclose(second.fitness, expected, rtol=1e-6)
  _, third = trainer.step(state)
  expected = (returns[1] + _returns(third)) / 2
  np.testing.assert_allclose(third.fitness, expected, rtol=1e-6)


def test_nothing_is_learned_before_there_is_enough(undisturbed):
  # Of 8 iterations with 2 environments, the eighth has the sixteenth step.
  state, report = undisturbed
  assert report.num_updates.tolist() == [2] * 4
  assert state.members.learner.critic_steps.tolist() == [2] * 4
  assert np.isfinite(report.metrics["loss"]).all()


def test_agents_act_uniformly_until_replay_has_enough(trainer, undisturbed):
  state = undisturbed[0]
  actions = state.members.replay.storage.action[:, :16]
  assert stats.kstest(actions.ravel(), stats.uniform(-1, 2).cdf).pvalue > 1e-3
  replay = state.members.replay
  size = replay.size * np.array([1, 0, 1, 1], np.int32)
  members = trainer.step(
    common.changed(state, replay=replay._replace(size=size)))[0].members
  # Five standard deviations of its noise, and what it learned meanwhile.
  actions = members.replay.storage.action[:, 16:32]
  distance = np.abs(actions - members.learner.point[:, None]).max((1, 2))
  assert (distance < 0.9).tolist() == [True, False, True, True]


def test_each_collected_observation_is_observed_once_and_reported(undisturbed):
  state, report = undisturbed
  # Those of the evaluation are not among them.
  assert state.members.learner.observations.tolist() == [16] * 4
  seen = state.members.replay.storage.observation[:, :16]
  np.testing.assert_allclose(
    report.metrics["observation_mean"], seen.mean(axis=(1, 2)), rtol=1e-5)
  np.testing.assert_allclose(
    report.metrics["observation_std"], seen.std(axis=(1, 2)), rtol=1e-4)


def test_the_spread_of_observations_is_told_far_from_zero():
  class Far(common.Drift):
    def reset(self, key):
      return self._state(
        1000 + 0.1 * jax.random.normal(key, (2,)), jnp.zeros(()))

  trainer = common.Trainer(common.setup(env=Far))
  state, report = trainer.step(trainer.first)
  seen = np.float64(state.members.replay.storage.observation[:, :16])
  np.testing.assert_allclose(
    report.metrics["observation_std"], seen.std(axis=(1, 2)), rtol=1e-3)


def test_episodes_that_reuse_a_state_are_counted(trainer, undisturbed):
  state, report = undisturbed
  # In 8 steps episodes of 5 steps end of which some are old already.
  ages = trainer.first.members.environment.info["steps"]
  num_ended = (ages + 8) // 5
  assert {*num_ended.ravel().tolist()} == {1, 2}
  np.testing.assert_array_equal(
    report.metrics["reused_initial_states"], np.sum(num_ended - 1, axis=1))
  assert state.members.pool == ()


@pytest.fixture(scope="module")
def tuned():
  """PBT after a burn-in period: the trainer, its states and reports."""
  trainer = common.tuned_trainer()
  return trainer, *trainer.history()


def test_a_generation_is_compiled_once_and_counted(tuned):
  trainer, _, reports = tuned
  assert trainer.compiled._cache_size() == 1
  assert [int(report.generation) for report in reports] == [1, 2, 3, 4]


def test_nobody_is_replaced_while_burning_in(tuned):
  first, *later = (report.decision for report in tuned[2])
  # The second generation ends after 32 steps, with which the period is over.
  np.testing.assert_array_equal(first.parents, np.arange(4))
  assert not first.operator.any()
  common.assert_bits_equal(first.hyperparams, tuned[1][0].hyperparams)
  assert all(decision.operator.any() for decision in later)
  # But for one that is broken.
  _, report = tuned[0].step(common.broken(tuned[1][0], members=[2]))
  assert np.flatnonzero(report.decision.operator).tolist() == [2]


def test_children_may_have_their_parents_replay(tuned):
  for state, report in zip(tuned[1][2:], tuned[2][1:], strict=True):
    parents = report.decision.parents
    (child,) = np.flatnonzero(parents != np.arange(4))
    members = [common.member(state.members, i) for i in (child, parents[child])]
    common.assert_bits_equal(members[0].learner, members[1].learner)
    common.assert_bits_equal(members[0].replay, members[1].replay)
    assert common.differ(members[0].environment, members[1].environment)


def test_without_a_random_warm_up_agents_act_from_the_first_step(tuned):
  first, state, *_ = tuned[1]
  actions = state.members.replay.storage.action[:, :2]
  points = first.members.learner.point[:, None]
  assert np.all(np.abs(actions - points) < 0.6)
