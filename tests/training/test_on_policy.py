"""Tests of agents that learn from the rollout that they have just collected."""

import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qdrl_haiku import controllers, learners, training, trees, types
from qdrl_haiku.programs import experiment
from qdrl_haiku.training import members as members_lib
from tests import configs
from tests.training import common

_T, _E = 4, 2
_SHAPE = 4, _T, _E


class _State(NamedTuple):
  """What a learner was given last, and how much it had observed then."""

  point: types.Array
  rollout: types.Transition
  num_observed: types.Array
  num_observed_before: types.Array


def _remembering():
  """A learner that keeps its last rollout; it acts with NaN if told so."""
  quadratic = common.quadratic_learner()

  def from_genotype(point):
    numbers = jnp.zeros((_T, _E))
    pairs = jnp.zeros((_T, _E, 2))
    extras = {"acted": pairs, "descriptor": pairs, "truncation": numbers}
    rollout = types.Transition(pairs, pairs, numbers, numbers, pairs, extras)
    zero = jnp.zeros((), jnp.int32)
    return _State(point, jax.tree.map(jnp.copy, rollout), zero, 0 + zero)

  def update(state, hyperparams, transitions, key):
    return state._replace(
      point=state.point + 0.1 * jax.random.normal(key), rollout=transitions,
      num_observed_before=state.num_observed), {"loss": jnp.zeros(())}

  def act(state, hyperparams, *args):
    action = quadratic.act(state, hyperparams, *args).action
    return types.Acted(
      jnp.where(hyperparams["parent"] > 0, jnp.nan, action),
      extras={"acted": 2 * action, "other": action})

  def observe(state, observation):
    count = jnp.sum(jnp.isfinite(observation).all(axis=-1))
    return state._replace(num_observed=state.num_observed + count)

  return quadratic._replace(
    init=lambda key: from_genotype(-0.5 * jax.random.uniform(key, (2,))),
    update=update, act=act, observe=observe, from_genotype=from_genotype,
    genotype=lambda state: state.point, learns_from="rollout",
    stores=("acted", "descriptor"), batches_per_update=3)


def _setup(learner, **settings):
  plain = common.setup(
    controllers.pbt(common.PBT, common.SPACE), learner, common.Placed)
  settings = {
    "population_size": 4, "num_envs": _E, "rollout_length": _T,
    "perturbation_interval": 2 * _T * _E, "num_eval_episodes": 2} | settings
  return plain._replace(config=training.TrainingConfig(**settings))


@functools.cache
def _trainer():
  return common.Trainer(_setup(_remembering()))


def test_a_learner_gets_what_was_just_collected_in_its_order():
  trainer = _trainer()
  state, report = trainer.step(trainer.first)
  assert report.num_updates.tolist() == [2 * 3] * 4  # Critic steps.
  assert state.members.replay == ()
  learned = state.members.learner
  # Before the last rollout of two it knew of the first.
  assert learned.num_observed_before.tolist() == [_T * _E] * 4
  assert learned.num_observed.tolist() == [2 * _T * _E] * 4
  rollout = learned.rollout
  assert sorted(rollout.extras) == ["acted", "descriptor", "truncation"]
  np.testing.assert_array_equal(rollout.extras["acted"], 2 * rollout.action)
  assert rollout.extras["descriptor"].shape == (*_SHAPE, 2)
  ends = rollout.extras["truncation"][:, :-1] > 0
  before, after = rollout.next_observation[:, :-1], rollout.observation[:, 1:]
  assert np.all(np.any(before != after, axis=-1) == ends)
  # Episodes have 5 steps.
  assert 0 < ends.sum() <= 4 * _E
  # It is the environments' latest step; a child has its parent's, and its own.
  survives = report.decision.operator == 0
  infos = state.members.environment.info
  np.testing.assert_array_equal(
    infos["next_observation"][survives], rollout.next_observation[survives, -1])


def test_steps_that_are_not_finite_are_replaced_as_episodes_of_their_own():
  numbers = jnp.arange(10.0).reshape(5, 2)
  pairs = jnp.stack([numbers, -numbers], axis=-1)
  rollout = types.Transition(
    pairs, pairs, numbers, jnp.ones((5, 2)).at[3, 1].set(0), pairs,
    {"truncation": jnp.zeros((5, 2)).at[1, 0].set(1)})
  bad = np.zeros((5, 2), bool)
  bad[0, 0] = bad[3, 0] = bad[4, 1] = True
  spoilt = rollout._replace(action=jnp.where(bad[..., None], np.inf, pairs))
  found = members_lib.rollout_without_nonfinite(
    spoilt, trees.all_finite_leaves(spoilt, 2))
  # The first one that is finite, of the second environment.
  expected = np.where(bad, 1.0, numbers)
  np.testing.assert_array_equal(found.reward, expected)
  np.testing.assert_array_equal(found.action[..., 1], -expected)
  assert found.discount[3, 1] == 0 and found.discount.sum() == 9
  # Each of them, and the one before; but the end of an episode is its own.
  expected = np.array([[1, 0], [1, 0], [1, 0], [1, 0], [0, 1]])
  np.testing.assert_array_equal(found.extras["truncation"], expected)


def test_an_agent_without_a_finite_step_does_not_learn():
  trainer = _trainer()
  first = trainer.first
  asked = first.hyperparams | {"parent": np.float32([0, 1, 0, 0])}
  state, report = trainer.step(common.changed(first, asked))
  usual, _ = trainer.step(first)
  assert report.num_updates.tolist() == [6, 0, 6, 6]
  assert report.metrics["nonfinite_transitions"].tolist() == [0, 16, 0, 0]
  assert report.finite.all()
  common.assert_bits_equal(
    common.member(state.members.learner, 1),
    common.member(first.members.learner, 1))
  common.assert_bits_equal(
    common.member(state.members, 2), common.member(usual.members, 2))


@pytest.mark.slow
@pytest.mark.parametrize(("program", "flags", "metric"), [
  ("train_me_pbt",
   "--learner=ppo --population_size=4 --variation_batch_size=4 "
   "--num_initial_genotypes=8 --grid_shape=4,4 --num_replaced=1 "
   "--num_replaced_by_samples=1", "policy_divergence"),
  ("train",
   "--learner=diayn --base_learner=ppo --population_size=2 --num_skills=3",
   "discriminator_loss")])
def test_it_learns_skills_and_fills_a_repertoire(program, flags, metric):
  setup = experiment.build(configs.configured(
    program, f"{flags} --env_name=point_maze --episode_length=10 --num_envs=2 "
    "--rollout_length=8 --hidden_layer_sizes=8 --num_timesteps=32"))
  trainer = common.Trainer(setup)
  state, report = trainer.step(trainer.first)
  found = report.metrics | report.emitter_metrics
  assert [x for x in found if x.endswith(metric)], sorted(found)
  learned = trainer.step(state)[0].members.learner
  assert common.all_finite(learned)
  assert common.differ(learned, trainer.first.members.learner)
  if setup.map_elites is not None:
    assert np.isfinite(state.repertoire.fitness).any()


@pytest.mark.parametrize(("learner", "settings", "message"), [
  (_remembering(), {"batch_size": 64}, "batch_size=64 .*learns from ro"),
  (common.quadratic_learner(), {"rollout_length": 7},
   "rollout_length=7 has no effect: the learner learns from replay; .* 25"),
  (_remembering(), {"perturbation_interval": 36},
   "num_envs=2 and rollout_length=4 make iterations of 8 .* 32 or 40"),
  (learners.ppo(2, 2, learners.PPOConfig(num_minibatches=3)), {},
   "rollout_length=4 times num_envs=2 are 8 .* cut into 3 equal minibatches")])
def test_what_fits_no_rollout_is_refused(learner, settings, message):
  setup = _setup(learner)
  setup = setup._replace(config=dataclasses.replace(setup.config, **settings))
  with pytest.raises(ValueError, match=message):
    common.shapes(setup)
