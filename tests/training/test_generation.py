"""Tests of one generation: learning, deciding, inheriting, recovering."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from qdrl_haiku import controllers, environments, training, types
from qdrl_haiku.controllers import lineage
from qdrl_haiku.runs import metrics
from qdrl_haiku.training import population as population_lib
from tests import compilations
from tests.controllers import common as controllers_common
from tests.training import common

_KEY = jax.random.key(0)
_EVERYONE = (0, 1, 2, 3)


def _returns(report):
  """[P], of what was reported."""
  return np.asarray(report.evaluation.returns).mean(axis=1)


class _Trainer:
  """Compiled functions of one setup, and its population before training."""

  def __init__(self, setup):
    self.setup = setup
    self._train = jax.jit(functools.partial(training.train_generation, setup))
    self.population = training.init_population(setup, _KEY)

  def train(self, population, parents=_EVERYONE):
    """One generation, after which member i is a child of parents[i]."""
    asked = {"parent": jnp.array(parents, jnp.float32)}
    return self._train(
      population._replace(hyperparams=population.hyperparams | asked), _KEY
    )


@pytest.fixture(scope="module")
def trainer():
  return _Trainer(
    common.setup(common.scripted(), fitness_window=2, min_replay_size=16)
  )


@pytest.fixture(scope="module")
def heirs():
  """A trainer whose children inherit replay buffers."""
  return _Trainer(
    common.setup(
      common.scripted(), inherit_replay=True, random_warm_up=False
    )
  )


@pytest.fixture(scope="module")
def undisturbed(trainer):
  """One generation in which everybody survives."""
  return trainer.train(trainer.population)


@pytest.fixture(scope="module")
def replaced(trainer):
  """The same, after which members 1 and 2 are children of member 0."""
  return trainer.train(trainer.population, (0, 0, 0, 3))


def test_survivors_are_bit_identical_to_those_of_an_undisturbed_run(
  undisturbed, replaced
):
  for i in (0, 3):
    common.assert_bits_equal(
      common.member(replaced[0].members, i),
      common.member(undisturbed[0].members, i),
    )


def test_a_child_has_its_parents_learner_bit_for_bit(undisturbed, replaced):
  parent = common.member(undisturbed[0].members.learner, 0)
  for child in (1, 2):
    common.assert_bits_equal(
      common.member(replaced[0].members.learner, child), parent
    )
    assert common.differ(
      common.member(undisturbed[0].members.learner, child), parent
    )


def test_a_child_keeps_its_replay_and_its_environments(undisturbed, replaced):
  for child in (1, 2):
    for part in ("replay", "environment"):
      before = common.member(getattr(undisturbed[0].members, part), child)
      after = common.member(getattr(replaced[0].members, part), child)
      common.assert_bits_equal(after, before)


@pytest.mark.slow
def test_a_child_inherits_the_replay_if_told_to(heirs):
  before = heirs.train(heirs.population)[0].members
  after = heirs.train(heirs.population, (0, 0, 0, 3))[0].members
  parent = common.member(before.replay, 0)
  common.assert_bits_equal(common.member(after.replay, 1), parent)
  assert common.differ(common.member(before.replay, 1), parent)
  common.assert_bits_equal(
    common.member(after.environment, 1), common.member(before.environment, 1)
  )


def test_a_child_has_the_controllers_hyperparameters(trainer, replaced):
  before = np.asarray(trainer.population.hyperparams["learning_rate"])
  after = np.asarray(replaced[0].hyperparams["learning_rate"])
  np.testing.assert_array_equal(after[[0, 3]], before[[0, 3]])
  np.testing.assert_array_equal(after[[1, 2]], 2 * before[0])
  np.testing.assert_array_equal(
    replaced[1].hyperparams["learning_rate"], before
  )


def test_a_child_has_its_parents_recent_fitness(replaced):
  returns = _returns(replaced[1])
  recent = np.asarray(replaced[0].recent_fitness)
  assert np.isnan(recent[:, 0]).all()
  np.testing.assert_array_equal(recent[:, 1], returns[[0, 0, 0, 3]])


def test_siblings_go_different_ways(trainer):
  # Identical in everything but what they draw from now on.
  population = training.init_population(trainer.setup, _KEY)
  twins = jnp.zeros(4, jnp.int32)
  population = population._replace(
    members=controllers.inherit(population.members, twins),
    hyperparams=controllers.inherit(population.hyperparams, twins),
  )
  members = trainer.train(population)[0].members
  points = np.asarray(members.learner.point)
  assert len(np.unique(points, axis=0)) == 4
  actions = np.asarray(members.replay.storage.action).reshape(4, -1)
  assert len(np.unique(actions, axis=0)) == 4


def test_fitness_is_the_mean_of_the_window(trainer, replaced):
  returns = [_returns(replaced[1])]
  np.testing.assert_array_equal(replaced[1].fitness, returns[0])
  population, second = trainer.train(replaced[0])
  returns.append(_returns(second))
  expected = (returns[0][[0, 0, 0, 3]] + returns[1]) / 2
  np.testing.assert_allclose(second.fitness, expected, rtol=1e-6)
  _, third = trainer.train(population)
  returns.append(_returns(third))
  np.testing.assert_allclose(
    third.fitness, (returns[1] + returns[2]) / 2, rtol=1e-6
  )


def test_the_best_of_this_evaluation_is_reported(trainer, undisturbed):
  population, report = undisturbed
  returns = _returns(report)
  assert int(report.best.member) == np.argmax(returns)
  common.assert_bits_equal(
    report.best.state,
    common.member(population.members.learner, int(report.best.member)),
  )


def test_nothing_is_learned_before_there_is_enough(trainer, undisturbed):
  # Of 8 iterations with 2 environments, the eighth has the sixteenth step.
  assert trainer.setup.config.min_replay_size == 16
  population, report = undisturbed
  assert np.asarray(report.num_updates).tolist() == [2] * 4
  steps = population.members.learner.critic_steps
  assert np.asarray(steps).tolist() == [2] * 4
  assert np.isfinite(report.metrics["loss"]).all()


def _distance_of_actions(members, first, last):
  """How far actions were from the points that the learners have now."""
  actions = np.asarray(members.replay.storage.action[:, first:last])
  points = np.asarray(members.learner.point)
  return np.abs(actions - points[:, None]).max()


def test_agents_act_uniformly_until_there_is_enough(trainer, undisturbed):
  actions = np.asarray(undisturbed[0].members.replay.storage.action[:, :16])
  assert stats.kstest(actions.ravel(), stats.uniform(-1, 2).cdf).pvalue > 1e-3
  members = trainer.train(undisturbed[0])[0].members
  assert _distance_of_actions(members, 0, 16) > 0.9
  # Five standard deviations of its noise, and what it learned meanwhile.
  assert _distance_of_actions(members, 16, 32) < 0.9


def test_without_a_random_warm_up_agents_act_from_the_first_step(heirs):
  members = heirs.train(heirs.population)[0].members
  assert _distance_of_actions(members, 0, 16) < 0.9


def test_members_begin_and_train_by_the_keys_of_their_generation(
  trainer, undisturbed
):
  setup, before = trainer.setup, trainer.population
  initial = population_lib.draw_initial_states(setup, _KEY, 1)
  first, second = (
    jnp.stack(
      [jax.random.fold_in(jax.random.fold_in(_KEY, g), i) for i in _EVERYONE]
    )
    for g in (0, 1)
  )
  np.testing.assert_array_equal(
    before.members.learner.point, jax.vmap(setup.learner.init)(first).point
  )
  trained, *_ = jax.jit(functools.partial(training.train_members, setup))(
    before.members._replace(pool=initial.pool),
    before.hyperparams,
    jax.vmap(jax.random.split)(second)[:, 0],
  )
  common.assert_bits_equal(trained.learner, undisturbed[0].members.learner)


def test_the_mean_and_the_spread_of_what_is_collected_are_reported(undisturbed):
  population, report = undisturbed
  seen = np.asarray(population.members.replay.storage.observation)[:, :16]
  np.testing.assert_allclose(
    report.metrics["observation_mean"], seen.mean(axis=(1, 2)), rtol=1e-5
  )
  np.testing.assert_allclose(
    report.metrics["observation_std"], seen.std(axis=(1, 2)), rtol=1e-4
  )


def test_each_collected_observation_is_observed_once(undisturbed):
  # Those of the evaluation are not among them.
  observations = undisturbed[0].members.learner.observations
  assert np.asarray(observations).tolist() == [16] * 4


def _break(population, part):
  """Puts NaN into one part of member 2."""
  members = population.members
  if part == "learner":
    learner = members.learner
    point = learner.point.at[2, 0].set(jnp.nan)
    members = members._replace(learner=learner._replace(point=point))
  else:
    storage = members.replay.storage
    reward = storage.reward.at[2].set(jnp.nan)
    storage = storage._replace(reward=reward)
    members = members._replace(replay=members.replay._replace(storage=storage))
  return population._replace(members=members)


@pytest.fixture(scope="module", params=["learner", "replay"])
def broken(request, trainer, undisturbed):
  """Two more generations, with and without NaN in member 2 before the first."""
  healthy = trainer.train(undisturbed[0])
  broken = trainer.train(_break(undisturbed[0], request.param))
  return healthy, broken, trainer.train(broken[0])


def test_a_non_finite_member_is_reported(broken):
  _, (_, report), _ = broken
  assert np.asarray(report.finite).tolist() == [True, True, False, True]
  assert np.isnan(np.asarray(report.fitness)).tolist() == [
    False, False, True, False
  ]
  assert int(report.best.member) != 2


def test_a_non_finite_member_gets_a_finite_parent_though_ranks_get_none(broken):
  (_, healthy), (_, report), _ = broken
  assert np.all(healthy.decision.operator == controllers_common.SURVIVE)
  parents = np.asarray(report.decision.parents)
  assert parents[2] != 2
  np.testing.assert_array_equal(parents[[0, 1, 3]], [0, 1, 3])


def test_after_the_replacement_everything_is_finite_and_stays_so(broken):
  _, (population, _), (later, report) = broken
  for tree in (population, later):
    for name, x in common.leaves(tree._replace(recent_fitness=())).items():
      if np.issubdtype(x.dtype, np.floating):
        assert np.isfinite(x).all(), name
  assert np.asarray(report.finite).all()


def test_the_other_members_are_bit_identical_to_the_faultless_run(broken):
  (healthy, _), (population, _), _ = broken
  for i in (0, 1, 3):
    common.assert_bits_equal(
      common.member(population.members, i), common.member(healthy.members, i)
    )


def test_a_replaced_members_environments_do_not_repeat_its_parents(broken):
  _, (population, report), (later, _) = broken
  parent = int(report.decision.parents[2])
  obs = np.asarray(population.members.environment.obs)
  np.testing.assert_array_equal(obs[2], obs[parent])
  # Episodes of five steps have begun anew since.
  obs = np.asarray(later.members.environment.obs)
  assert not np.array_equal(obs[2], obs[parent])


def test_a_non_finite_hyperparameter_makes_its_member_non_finite(
  trainer, undisturbed
):
  # One that the learner doesn't read, so that it breaks nothing else.
  population, report = trainer.train(undisturbed[0], (0, jnp.nan, 2, 3))
  assert np.asarray(report.finite).tolist() == [True, False, True, True]
  assert int(report.decision.parents[1]) != 1
  assert np.isfinite(population.hyperparams["parent"]).all()


def test_when_all_have_diverged_they_can_begin_anew(trainer, undisturbed):
  members = undisturbed[0].members
  learner = members.learner
  learner = learner._replace(point=jnp.full_like(learner.point, jnp.nan))
  population, report = trainer.train(
    undisturbed[0]._replace(members=members._replace(learner=learner))
  )
  assert not np.asarray(report.finite).any()
  np.testing.assert_array_equal(report.decision.parents, _EVERYONE)
  # Other hyperparameters, since nobody is known to do well with the old ones.
  assert not np.any(
    np.asarray(population.hyperparams["learning_rate"])
    == np.asarray(report.hyperparams["learning_rate"])
  )
  restarted = population_lib.restart_members(trainer.setup, population, _KEY)
  assert int(restarted.generation) == 2
  common.assert_bits_equal(restarted.hyperparams, population.hyperparams)
  for name, x in common.leaves(restarted.members).items():
    if np.issubdtype(x.dtype, np.floating):
      assert np.isfinite(x).all(), name
  first = trainer.population.members.learner.point
  assert not np.any(np.asarray(restarted.members.learner.point) == first)
  # The window must not hold the returns of those who are gone.
  assert np.isnan(restarted.recent_fitness).all()
  _, report = trainer.train(restarted)
  np.testing.assert_array_equal(
    report.fitness, _returns(report)
  )


def _tuned_setup():
  return common.setup(
    controllers.pbt(controllers.PBTConfig(), common.SPACE), burn_in_period=32
  )


@pytest.fixture(scope="module")
def tuned():
  """PBT of the quadratic learner over eight generations, burning in for two.

  Returns the reports, and how many programs jit has compiled.
  """
  setup = _tuned_setup()
  train = jax.jit(
    functools.partial(training.train_generation, setup), donate_argnums=0
  )
  population = jax.jit(functools.partial(training.init_population, setup))(_KEY)
  reports = []
  for _ in range(8):
    donated = population
    population, report = train(population, _KEY)
    reports.append(jax.device_get(report))
    assert donated.members.replay.storage.reward.is_deleted()
  return reports, train._cache_size()


@pytest.mark.slow
def test_a_learner_of_ten_lines_is_tuned_and_improves(tuned):
  reports, _ = tuned
  means = [np.mean(report.evaluation.returns) for report in reports]
  assert np.mean(means[-2:]) > np.mean(means[:2]) + 0.5
  rates = [np.mean(report.hyperparams["learning_rate"]) for report in reports]
  assert rates[-1] > 2 * rates[0]


def test_a_generation_is_compiled_once(tuned):
  assert tuned[1] == 1


def test_training_outside_of_jit_compiles_once():
  setup = common.setup(common.scripted())

  def generations(key):
    population = training.init_population(setup, key)
    for _ in range(2):
      population, _ = training.train_generation(setup, population, key)
    return population

  generations(jax.random.key(0))
  assert compilations.of(generations, jax.random.key(1)) == 0


def test_nobody_is_replaced_while_burning_in(tuned):
  reports, _ = tuned
  replaced = [
    np.sum(r.decision.operator != controllers_common.SURVIVE) for r in reports
  ]
  # The second generation ends after 32 steps, with which the period is over.
  assert replaced[0] == 0 and all(replaced[1:])
  np.testing.assert_array_equal(reports[0].decision.parents, _EVERYONE)
  common.assert_bits_equal(
    reports[0].decision.hyperparams, reports[0].hyperparams
  )


@pytest.fixture(scope="module")
def burning_in():
  """A trainer that replaces one of four, but in all of these generations."""
  controller = controllers.pbt(controllers.PBTConfig(), common.SPACE)
  trainer = _Trainer(common.setup(controller, burn_in_period=96))
  return trainer, trainer.train(trainer.population)[0]


@pytest.mark.parametrize("part", ["learner", "replay", "environment"])
@pytest.mark.slow
def test_burning_in_keeps_who_is_finite_and_nobody_who_is_broken(
  part, burning_in
):
  trainer, before = burning_in
  sound, healthy = trainer.train(before)
  assert not np.any(healthy.decision.operator)
  population, report = trainer.train(_break(before, part))
  parent = int(report.decision.parents[2])
  assert parent != 2
  for i in (0, 1, 3):
    assert int(report.decision.parents[i]) == i
    for name in ("members", "hyperparams", "recent_fitness"):
      common.assert_bits_equal(
        common.member(getattr(population, name), i),
        common.member(getattr(sound, name), i),
      )
  after = [common.member(population.members, i) for i in (2, parent)]
  for name in ("learner", "replay"):
    common.assert_bits_equal(*(getattr(member, name) for member in after))
  common.assert_bits_equal(
    *(member.environment.pipeline_state for member in after)
  )
  # A child's, though nobody is replaced by rank.
  rate = common.SPACE["learning_rate"]
  old = np.asarray(report.hyperparams["learning_rate"])
  new = float(population.hyperparams["learning_rate"][2])
  assert new in [
    float(rate.perturb(old[parent], up, (0.8, 1.25))) for up in (True, False)
  ]
  (row,) = lineage.rows(
    2, 32, report.decision, report.fitness, report.hyperparams,
    trainer.setup.controller.operators,
  )  # fmt: skip
  assert (row["child"], row["parent"]) == (2, parent)
  assert row["operator"] == "perturb"
  assert row["new_hyperparams"]["learning_rate"] == new
  assert np.asarray(trainer.train(population)[1].finite).all()


def test_all_that_break_burning_in_are_resampled_with_a_row_each(burning_in):
  trainer, before = burning_in
  learner = before.members.learner
  learner = learner._replace(point=jnp.full_like(learner.point, jnp.nan))
  population, report = trainer.train(
    before._replace(members=before.members._replace(learner=learner))
  )
  assert not np.asarray(report.finite).any()
  np.testing.assert_array_equal(report.decision.parents, _EVERYONE)
  rows = lineage.rows(
    2, 32, report.decision, report.fitness, report.hyperparams,
    trainer.setup.controller.operators,
  )  # fmt: skip
  assert [row["operator"] for row in rows] == ["reinitialise"] * 4
  assert [row["child"] for row in rows] == list(_EVERYONE)
  new = np.asarray(population.hyperparams["learning_rate"])
  assert not set(new) & set(np.asarray(before.hyperparams["learning_rate"]))
  restarted = population_lib.restart_members(trainer.setup, population, _KEY)
  assert np.asarray(trainer.train(restarted)[1].finite).all()


class Waiting(common.Drift):
  """Keeps infinities and a NaN where nobody else looks, by design."""

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
def test_what_an_environment_keeps_for_itself_makes_nobody_diverge(tuned):
  env = environments.create(Waiting(), episode_length=5)
  trainer = _Trainer(_tuned_setup()._replace(env=env, eval_env=env))
  population = trainer.population
  reports = []
  for _ in range(8):
    population, report = trainer._train(population, _KEY)
    reports.append(jax.device_get(report))
  kept = population.members.environment.pipeline_state.pipeline_state
  assert not any(np.isfinite(x).any() for x in kept.values())
  # All goes as in an environment that keeps no such thing.
  for report, expected in zip(reports, tuned[0], strict=True):
    assert report.finite.all()
    assert metrics.pbt_row(report)["pbt/num_nonfinite"] == 0
    np.testing.assert_array_equal(
      report.decision.parents, expected.decision.parents
    )
    np.testing.assert_allclose(
      report.evaluation.returns, expected.evaluation.returns, rtol=1e-4
    )
  means = [np.mean(_returns(report)) for report in reports]
  assert np.mean(means[-2:]) > np.mean(means[:2]) + 0.5


def test_what_an_agent_learns_and_acts_with_has_to_be_finite(undisturbed):
  members = undisturbed[0].members

  def judged(**changes):
    tree = population_lib.must_be_finite(members._replace(**changes))
    return np.asarray(types.all_finite(tree)).tolist()

  assert judged() == [True] * 4
  point = members.learner.point.at[1, 0].set(jnp.nan)
  assert judged(learner=members.learner._replace(point=point)) == [
    True, False, True, True
  ]
  storage = members.replay.storage
  storage = storage._replace(reward=storage.reward.at[2, 5].set(jnp.inf))
  assert judged(replay=members.replay._replace(storage=storage)) == [
    True, True, False, True
  ]
  # What an environment returns is left out of what is learned.
  environment = members.environment.replace(
    obs=members.environment.obs.at[3].set(jnp.nan)
  )
  assert judged(environment=environment) == [True] * 4


def test_the_generations_are_counted_from_one(tuned):
  assert [int(r.generation) for r in tuned[0]] == list(range(1, 9))


@pytest.mark.slow
def test_an_update_is_a_critic_step():
  setup = common.setup(
    learner=common.quadratic_learner(batches_per_update=3),
    num_envs=3,
    perturbation_interval=18,
    grad_updates_per_step=2.0,
    min_replay_size=1,
  )

  @jax.jit
  def run():
    population = training.init_population(setup, _KEY)
    population, report = training.train_generation(setup, population, _KEY)
    return population.members.learner.critic_steps, report.num_updates

  for counted in run():
    assert np.asarray(counted).tolist() == [36] * 4
