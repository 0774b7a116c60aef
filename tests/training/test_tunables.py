"""Tests of members that tune what their environment declares."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qdrl_haiku import controllers, environments, learners, training
from qdrl_haiku.actors import collection
from qdrl_haiku.programs import experiment
from qdrl_haiku.training import members
from tests.training import common

_WEIGHT = environments.Hyperparameter(
  0.0, "a weight", search=controllers.Uniform(1.0, 9.0))


class _Weighed(common.Placed):
  """Adds a bonus to each reward."""

  tunables = {"bonus": _WEIGHT}

  def step(self, state, action, tunables):
    state = super().step(state, action)
    return state.replace(reward=state.reward + tunables["bonus"])


def _tuned(setup):
  return setup._replace(
    learner=training.with_tunables(setup.learner, setup.env))


_SPACE = {**common.SPACE, "env/bonus": _WEIGHT.search}
_SETUP = _tuned(common.setup(
  controllers.pbt(common.PBT, _SPACE), env=_Weighed))


_trainer = functools.cache(lambda: common.Trainer(_SETUP))


def test_members_collect_by_their_own_values_and_are_judged_by_the_defaults():
  trainer = _trainer()
  own = jnp.array([0.0, 1.0, 2.0, 3.0])
  plain = trainer.first.hyperparams | {"env/bonus": 0 * own}
  paid = []
  for bonus in (0 * own, own):
    state, report = trainer.step(common.changed(
      trainer.first, plain | {"env/bonus": bonus}))
    paid.append(np.asarray(state.members.replay.storage.reward))
  # Replay is a member's own, a child's too.
  np.testing.assert_allclose((paid[1] - paid[0])[:, 0], own, atol=1e-5)
  assert (report.evaluation.returns <= 0).all()
  assert trainer.compiled._cache_size() == 1


def test_children_inherit_them_perturbed_and_pbt_finds_what_is_fit():
  state, report = _trainer().step(_trainer().first)
  first, after = report.hyperparams["env/bonus"], state.hyperparams["env/bonus"]
  parents = report.decision.parents
  (child,) = np.flatnonzero(parents != np.arange(4))
  moved = abs(after[child] - first[parents[child]])
  assert moved == pytest.approx(1.6, rel=1e-4)
  assert np.delete(after, child).tolist() == np.delete(first, child).tolist()


def test_a_repertoire_keeps_them_beside_genotypes():
  setup = _tuned(common.repertoire_setup(env=_Weighed)._replace(
    controller=controllers.pbt(common.PBT, _SPACE)))
  explore = controllers.explore(common.PBT, _SPACE)
  setup = setup._replace(map_elites=setup.qd._replace(
    variation_fn=training.vary_elites(0.1, 0.2, explore)))
  trainer = common.Trainer(setup)
  state, _ = trainer.step(trainer.first)
  occupied = np.isfinite(state.repertoire.fitness)
  bonus = state.repertoire.genotypes.hyperparams["env/bonus"][occupied]
  assert bonus.size and ((bonus >= 1) & (bonus <= 9)).all()
  # The true reward is never above 0.
  assert (state.repertoire.fitness[occupied] <= 0).all()


def test_hyperparameters_that_are_no_dict_have_no_place_for_them():
  learner = common.quadratic_learner()._replace(hyperparams=(0.1, 0.2))
  with pytest.raises(ValueError, match="tuple, .* env/bonus can't be added"):
    training.with_tunables(learner, _SETUP.env)


def _planned(env_name, **changes):
  config = experiment.Config(
    environment=environments.EnvironmentConfig(env_name=env_name), **changes)
  return experiment.plan_experiment(config).search_space


def test_they_are_searched_by_default_or_by_name():
  by_default = _planned("sparse_maze")
  weights = {name for name in by_default if name.startswith("env/")}
  assert weights == {"env/moving", "env/nearness", "env/progress"}
  assert by_default["env/moving"] == controllers.LogUniform(0.01, 1.0)
  # Where only others are searched, they are no hyperparameters at all.
  others = _planned("sparse_maze", search_space=("tau:uniform:0.1:0.2",))
  assert not any(name.startswith("env/") for name in others)
  one = _planned("sparse_maze", search_space=("env/moving:uniform:0:1",))
  assert one["env/moving"] == controllers.Uniform(0, 1)
  assert one["env/progress"] == controllers.Fixed(0.0)
  given = _planned("sparse_maze", hyperparams={"env/progress": 0.5})
  assert given["env/progress"] == controllers.Fixed(0.5)


@pytest.mark.parametrize(("env_name", "given", "message"), [
  ("sparse_maze", {"hyperparams": {"env/moveing": 1.0}},
   "--hyperparam=env/moveing=1 is no tunable of the environment; did you mean "
   "'env/moving'"),
  ("sparse_maze", {"search_space": ("env/progres:uniform:0:1",)},
   "names 'env/progres', which is no tunable .*did you mean 'env/progress'"),
  ("sparse_maze", {"hyperparams": {"env/moving": -1.0}},
   "=-1.0 makes no sense; give a finite number from 0 to 100"),
  ("point_maze", {"hyperparams": {"env/moving": 1.0}},
   "is no tunable of the environment; it has none, so leave it out")])
def test_wrong_names_and_values_are_refused_in_a_line(env_name, given, message):
  with pytest.raises(ValueError, match=message):
    _planned(env_name, **given)


def test_rewards_are_paid_anew_by_the_weights_at_learning():
  env = environments.create("sparse_maze")
  plain = learners.sac(2, 2)
  seen = []

  def update(state, hyperparams, transitions, key):
    seen.append(transitions)
    return state, {}

  learner = training.with_tunables(
    plain._replace(update=update), env, pay_anew=True)
  assert learner.stores == ("reward_terms",)
  state = env.reset(jax.random.split(jax.random.key(0), 2))
  action = jnp.array([[1.0, 0.5], [-0.3, 1.0]])
  weights = {"moving": 2.0, "nearness": 0.5, "progress": 3.0}
  paid = env.step(state, action, None, weights)
  transition = collection.collect_transition(
    state, action, env.step(state, action, None, {"progress": 7.0}))
  assert abs(transition.reward - paid.reward).min() > 0.3
  hyperparams = learner.hyperparams | {
    f"env/{name}": x for name, x in weights.items()}
  learner.update((), hyperparams, transition, jax.random.key(0))
  np.testing.assert_allclose(seen[0].reward, paid.reward, rtol=1e-6)
  assert "reward_terms" not in seen[0].extras


def test_members_that_pay_anew_train_by_the_terms_in_replay():
  config = experiment.Config(
    environment=environments.EnvironmentConfig(
      env_name="sparse_maze"),
    search_space=("env/progress:uniform:1:9",))
  setup = experiment.build(config)
  stored = members.stored_by_members(
    setup, members.member_transition_example(setup)).extras
  assert set(stored["reward_terms"]) == {
    "moving", "nearness", "progress", "rest"}
  # Those of sums over several steps have no terms, nor are they asked for.
  several = dataclasses.replace(
    config, training=dataclasses.replace(config.training, n_step=3))
  assert not experiment.build(several).learner.stores


@pytest.mark.parametrize(("env_name", "changes", "message"), [
  ("sparse_maze", {"search_space": ("tau:uniform:0.1:0.2",)},
   "pay_anew has no effect, since no tunable"),
  ("sparse_maze", {"learner": learners.PPOConfig()},
   "pay_anew has no effect on a learner from rollouts"),
  ("gym:Swimmer-v5",
   {"hyperparams": {"env/ctrl_cost_weight": 1.0}},
   "pay_anew needs an environment that tells its reward's terms")])
def test_rewards_that_cannot_be_paid_anew_are_refused(
  env_name, changes, message):
  config = experiment.Config(
    environment=environments.EnvironmentConfig(
      env_name=env_name, pay_anew=True), **changes)
  with pytest.raises(ValueError, match=message):
    experiment.build(config)
