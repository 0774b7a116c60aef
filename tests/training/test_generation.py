"""Tests of one generation: learning, deciding, inheriting, recovering."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from qdrl_haiku import controllers, environments
from qdrl_haiku.controllers import lineage
from tests import compilations
from tests.training import common

_EVERYONE = (0, 1, 2, 3)


def _returns(report):
  """[P], of what was reported."""
  return np.asarray(report.evaluation.returns).mean(axis=1)


class _Scripted(common.Trainer):
  """After a generation member i is a child of parents[i]."""

  def step(self, state, parents=_EVERYONE):
    asked = {"parent": jnp.array(parents, jnp.float32)}
    return super().step(common.changed(state, state.hyperparams | asked))


@pytest.fixture(scope="module")
def trainer():
  return _Scripted(
    common.setup(common.scripted(), fitness_window=2, min_replay_size=16)
  )


@pytest.fixture(scope="module")
def undisturbed(trainer):
  """One generation in which everybody survives."""
  return trainer.step(trainer.first)


@pytest.fixture(scope="module")
def replaced(trainer):
  """The same, after which members 1 and 2 are children of member 0."""
  return trainer.step(trainer.first, (0, 0, 0, 3))


def test_survivors_are_bit_identical_to_those_of_an_undisturbed_run(
  undisturbed, replaced
):
  for i in (0, 3):
    common.assert_bits_equal(
      common.member(replaced[0].members, i),
      common.member(undisturbed[0].members, i),
    )


def test_a_child_has_its_parents_learner_and_its_own_replay_and_environments(
  undisturbed, replaced
):
  before, after = undisturbed[0].members, replaced[0].members
  parent = common.member(before.learner, 0)
  for child in (1, 2):
    common.assert_bits_equal(common.member(after.learner, child), parent)
    assert common.differ(common.member(before.learner, child), parent)
    for part in ("replay", "environment"):
      common.assert_bits_equal(
        common.member(getattr(after, part), child),
        common.member(getattr(before, part), child),
      )


def test_a_child_has_the_controllers_hyperparameters(trainer, replaced):
  before = np.asarray(trainer.first.hyperparams["learning_rate"])
  after = replaced[0].hyperparams["learning_rate"]
  np.testing.assert_array_equal(after[[0, 3]], before[[0, 3]])
  np.testing.assert_array_equal(after[[1, 2]], 2 * before[0])
  np.testing.assert_array_equal(
    replaced[1].hyperparams["learning_rate"], before
  )


def test_siblings_go_different_ways(trainer):
  # Identical in everything but what they draw from now on.
  first, twins = trainer.first, jnp.zeros(4, jnp.int32)
  state = common.changed(
    first,
    controllers.inherit(first.hyperparams, twins),
    **controllers.inherit(first.members, twins)._asdict(),
  )
  members = trainer.step(state)[0].members
  assert len(np.unique(members.learner.point, axis=0)) == 4
  actions = members.replay.storage.action.reshape(4, -1)
  assert len(np.unique(actions, axis=0)) == 4


def test_fitness_is_the_mean_of_the_window_and_a_childs_its_parents(
  trainer, replaced
):
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


def test_the_best_of_this_evaluation_is_reported(undisturbed):
  state, report = undisturbed
  best = np.argmax(_returns(report))
  assert int(report.best.member) == best
  common.assert_bits_equal(
    report.best.state, common.member(state.members.learner, best)
  )


def test_nothing_is_learned_before_there_is_enough(undisturbed):
  # Of 8 iterations with 2 environments, the eighth has the sixteenth step.
  state, report = undisturbed
  assert report.num_updates.tolist() == [2] * 4
  assert state.members.learner.critic_steps.tolist() == [2] * 4
  assert np.isfinite(report.metrics["loss"]).all()


def _distance_of_actions(members, first, last):
  """How far [P] actions were from the points that the learners have now."""
  actions = members.replay.storage.action[:, first:last]
  return np.abs(actions - members.learner.point[:, None]).max((1, 2))


def test_each_agent_acts_uniformly_until_its_own_replay_has_enough(
  trainer, undisturbed
):
  state = undisturbed[0]
  actions = state.members.replay.storage.action[:, :16]
  assert stats.kstest(actions.ravel(), stats.uniform(-1, 2).cdf).pvalue > 1e-3
  replay = state.members.replay
  size = replay.size * np.array([1, 0, 1, 1], np.int32)
  members = trainer.step(
    common.changed(state, replay=replay._replace(size=size))
  )[0].members
  # Five standard deviations of its noise, and what it learned meanwhile.
  distance = _distance_of_actions(members, 16, 32)
  assert np.all(distance[[0, 2, 3]] < 0.9)
  assert distance[1] > 0.9 or members.replay.size[1] == 16


def test_each_collected_observation_is_observed_once_and_reported(undisturbed):
  state, report = undisturbed
  # Those of the evaluation are not among them.
  assert state.members.learner.observations.tolist() == [16] * 4
  seen = state.members.replay.storage.observation[:, :16]
  np.testing.assert_allclose(
    report.metrics["observation_mean"], seen.mean(axis=(1, 2)), rtol=1e-5
  )
  np.testing.assert_allclose(
    report.metrics["observation_std"], seen.std(axis=(1, 2)), rtol=1e-4
  )


def test_a_replaced_broken_members_environments_do_not_repeat_its_parents(
  trainer, undisturbed
):
  state, report = trainer.step(common.broken_learner(undisturbed[0], 2))
  parent = int(report.decision.parents[2])
  assert parent != 2
  obs = state.members.environment.obs
  np.testing.assert_array_equal(obs[2], obs[parent])
  # Episodes of five steps have begun anew since.
  obs = trainer.step(state)[0].members.environment.obs
  assert not np.array_equal(obs[2], obs[parent])


def test_when_all_have_diverged_they_can_begin_anew(trainer, undisturbed):
  state, report = trainer.step(common.broken_learner(undisturbed[0]))
  assert not report.finite.any()
  np.testing.assert_array_equal(report.decision.parents, _EVERYONE)
  # Other hyperparameters, since none is known to do well with the old ones.
  new, old = (x.hyperparams["learning_rate"] for x in (state, report))
  assert not np.any(new == old)
  restarted = trainer.restart(state)
  assert int(restarted.generation) == 2
  common.assert_bits_equal(restarted.hyperparams, state.hyperparams)
  assert common.all_finite(restarted.members)
  first = trainer.first.members.learner.point
  assert not np.any(np.asarray(restarted.members.learner.point) == first)
  # The window must not hold the returns of those that are gone.
  assert np.isnan(restarted.population.recent_fitness).all()
  _, report = trainer.step(restarted)
  np.testing.assert_array_equal(report.fitness, _returns(report))


@pytest.mark.slow
def test_training_outside_of_jit_compiles_once():
  setup = common.setup(common.scripted())

  def generations(key):
    state = common.init(setup, key)
    for _ in range(2):
      state, _ = common.step(setup, state, key)
    return state

  generations(jax.random.key(0))
  assert compilations.of(generations, jax.random.key(1)) == 0


_SIZE, _GENERATIONS = 8, 6
_MAKE = {
  "pbt": lambda: controllers.pbt(controllers.PBTConfig(), common.SPACE),
  "mf_pbt": lambda: controllers.mf_pbt(
    controllers.MFPBTConfig(frequencies=(1, 2)), common.SPACE
  ),
  "pb2": lambda: controllers.pb2(
    controllers.PB2Config(window=16), common.SPACE
  ),
  "successive_halving": lambda: controllers.successive_halving(
    controllers.SuccessiveHalvingConfig(first_rung=3), common.SPACE
  ),
}


class _Tuned(common.Trainer):
  """Trains a population that burns in for one generation, and then evolves."""

  def __init__(self, name, env=common.ENV):
    controller = _MAKE[name]()
    super().__init__(
      common.setup(
        controller,
        population_size=_SIZE,
        inherit_replay=True,
        random_warm_up=False,
        burn_in_period=32,
      )._replace(env=env, eval_env=env)
    )
    self.rows = lineage.initial_rows(self.first.hyperparams)
    self.states, self.reports = [self.first], []
    for generation in range(1, _GENERATIONS + 1):
      state, report = self.step(self.states[-1])
      self.states.append(state)
      self.reports.append(report)
      self.rows += self.rows_of(generation, report)

  def rows_of(self, generation, report):
    return lineage.rows(
      generation, 16 * generation, report.decision, report.fitness,
      report.hyperparams, self.setup.controller.operators,
    )  # fmt: skip


_SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in [*_MAKE][1:]]


@pytest.fixture(scope="module", params=["pbt", *_SLOW])
def tuned(request):
  return _Tuned(request.param)


def test_a_generation_is_compiled_once_and_counted(tuned):
  assert tuned.compiled._cache_size() == 1
  counts = [int(report.generation) for report in tuned.reports]
  assert counts == list(range(1, _GENERATIONS + 1))


def test_nobody_is_replaced_while_burning_in(tuned):
  first, *later = (report.decision for report in tuned.reports)
  # The second generation ends after 32 steps, with which the period is over.
  np.testing.assert_array_equal(first.parents, np.arange(_SIZE))
  assert not first.operator.any()
  common.assert_bits_equal(first.hyperparams, tuned.reports[0].hyperparams)
  assert any(decision.operator.any() for decision in later)


def test_children_have_their_parents_weights_and_replay(tuned):
  num_children = 0
  pairs = zip(tuned.states[1:], tuned.reports, strict=True)
  for state, report in pairs:
    parents = report.decision.parents
    for child in np.flatnonzero(parents != np.arange(_SIZE)):
      parent = parents[child]
      assert parents[parent] == parent
      num_children += 1
      members = [common.member(state.members, i) for i in (child, parent)]
      common.assert_bits_equal(members[0].learner, members[1].learner)
      common.assert_bits_equal(members[0].replay, members[1].replay)
      assert common.differ(members[0].environment, members[1].environment)
      common.assert_bits_equal(
        common.member(state.hyperparams, child),
        common.member(report.decision.hyperparams, child),
      )
  assert num_children >= 2


def test_without_a_random_warm_up_agents_act_from_the_first_step(tuned):
  actions = tuned.states[1].members.replay.storage.action[:, :2]
  points = tuned.first.members.learner.point[:, None]
  assert np.all(np.abs(actions - points) < 0.6)


def test_the_schedule_of_a_member_is_that_of_its_ancestors(tuned):
  for member in range(_SIZE):
    rows = lineage.schedule(tuned.rows, member, _GENERATIONS)
    ancestor = member
    for generation in range(_GENERATIONS, 0, -1):
      report = tuned.reports[generation - 1]
      if generation < _GENERATIONS:
        ancestor = int(report.decision.parents[ancestor])
      row = rows[generation - 1]
      assert (row["generation"], row["member"]) == (generation, ancestor)
      rate = float(report.hyperparams["learning_rate"][ancestor])
      assert row["hyperparams"]["learning_rate"] == rate


def test_all_that_break_are_resampled_with_a_row_each(tuned):
  for state in (tuned.first, tuned.states[-1]):  # Burning in, or not.
    after, report = tuned.step(common.broken_learner(state))
    assert not report.finite.any()
    np.testing.assert_array_equal(report.decision.parents, np.arange(_SIZE))
    rows = tuned.rows_of(1, report)
    assert [row["operator"] for row in rows] == ["reinitialise"] * _SIZE
    assert [row["child"] for row in rows] == list(range(_SIZE))
    old, new = (
      set(x.hyperparams["learning_rate"].tolist()) for x in (report, after)
    )
    assert len(new) == _SIZE and not old & new
    assert tuned.step(tuned.restart(after))[1].finite.all()


class _Waiting(common.Drift):
  """Keeps infinities and a NaN where nothing else looks, by design."""

  def reset(self, key):
    state = super().reset(key)
    return state.replace(
      pipeline_state={
        "best": -jnp.full((), jnp.inf), "since": jnp.full((), jnp.nan)
      },
      metrics={"time_left": jnp.full((), jnp.inf)},
    )

  def step(self, state, action):
    after = super().step(state, action)
    return after.replace(
      pipeline_state=state.pipeline_state, metrics=state.metrics
    )


@pytest.mark.slow
def test_a_learner_of_ten_lines_is_tuned_though_environments_keep_infinities():
  env = environments.create(_Waiting(), episode_length=5)
  expected, waiting = _Tuned("pbt"), _Tuned("pbt", env)
  kept = waiting.states[-1].members.environment.pipeline_state.pipeline_state
  assert not any(np.isfinite(x).any() for x in kept.values())
  for report, plain in zip(waiting.reports, expected.reports, strict=True):
    assert report.finite.all()
    np.testing.assert_array_equal(
      report.decision.parents, plain.decision.parents
    )
  means = [np.mean(_returns(report)) for report in waiting.reports]
  assert np.mean(means[-2:]) > np.mean(means[:2]) + 0.5


@pytest.mark.slow
def test_an_update_is_a_critic_step():
  setup = common.setup(
    learner=common.quadratic_learner(batches_per_update=3),
    num_envs=3,
    perturbation_interval=18,
    grad_updates_per_step=2.0,
    min_replay_size=1,
  )
  trainer = common.Trainer(setup)
  state, report = trainer.step(trainer.first)
  for counted in (state.members.learner.critic_steps, report.num_updates):
    assert counted.tolist() == [36] * 4
