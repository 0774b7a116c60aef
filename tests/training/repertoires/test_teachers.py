"""Tests of the critic that a repertoire's agents share."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qdrl_haiku import (
  environments,
  learners,
  map_elites,
  networks,
  training,
  types,
)
from tests import toy
from tests.training import common

_TIMES = 3
_GRID = map_elites.Grid((4, 4), (-10.0, 0.0), (10.0, 100.0))


class _Walk(toy.Walk):
  """Its rewards fall 2 below 0."""

  descriptor = environments.Descriptor(
    ("x", "steps"), (-10.0, 0.0), (10.0, 100.0), reward_offset=2.0)


def _learner(update=None):
  """What it learns from is in its metrics, and its state counts."""

  def count(state, hyperparams, transitions, key):
    metrics = {
      "reward": jnp.mean(transitions.reward),
      "seen": jnp.mean(transitions.observation[..., -1])}
    return state + 1, metrics

  plain = toy.linear_learner()

  def share(size):
    of_one = plain._replace(
      init=lambda key: jnp.zeros(()), update=update or count,
      observe=lambda state, observation: state, batches_per_update=2)
    return learners.SharedCritic(
      of_one,
      improve=lambda state, genotype, observations, context, rate: jax.tree.map(
        lambda x: x + jnp.sum(context) + 100 * state, genotype),
      genotype_at=lambda state, context: {"offset": state, "gain": state})

  return plain._replace(share=share)


def _setup(learner=None, **settings):
  env = environments.Environment(_Walk(), episode_length=_TIMES)
  config = {
    "batch_size": 4, "replay_capacity": 60, "min_replay_size": 2,
    "num_eval_episodes": 2}
  return training.Setup(
    env=env, eval_env=env, learner=learner or _learner(), controller=None,
    config=training.TrainingConfig(**(config | settings)),
    map_elites=training.MapElites(
      emitter="pga", container=map_elites.cells(_GRID),
      variation_fn=training.vary_elites(0.1, 0.1, lambda key, x: x),
      variation_batch_size=4, num_initial_genotypes=4,
      teaching=training.TeachingConfig(num_critic_steps=4, length_scale=0.5)))


def setup_of(emitter):
  """Four agents in each generation, of such an emitter."""
  setup = _setup()
  return setup._replace(map_elites=setup.map_elites._replace(emitter=emitter))


def _teacher(sees_targets, setup=None):
  setup = setup or _setup()
  return training.teacher(
    setup.eval_env, setup.learner, setup.config, setup.qd.teaching,
    sees_targets=sees_targets)


def _told(rewards, lengths, descriptors):
  """What is known of agents' episodes, which rewards [B, N, T] tell apart."""
  rewards = jnp.asarray(rewards, jnp.float32)
  observation = jnp.stack([rewards, -rewards], axis=-1)
  transitions = types.Transition(
    observation, rewards[..., None], rewards, jnp.ones_like(rewards),
    observation + 1, {})
  return map_elites.Evaluated(
    None, None, jnp.asarray(descriptors),
    {"transitions": transitions, "lengths": jnp.asarray(lengths)})


@pytest.mark.parametrize("sees_targets", [False, True])
def test_each_step_is_stored_once_with_its_descriptors(sees_targets):
  teacher = _teacher(sees_targets)
  rewards = np.arange(12.0).reshape(2, 2, _TIMES)
  rewards[1, 0, 1] = np.nan
  descriptors = [[-10.0, 50.0], [1e30, 0.0]]
  targets = jnp.array([[0.0, 100.0], [5.0, 50.0]])
  state = jax.jit(teacher.remember)(
    teacher.init(jax.random.key(0)),
    _told(rewards, [[3, 1], [3, 2]], descriptors), targets)
  # 4 and 5 come after an episode's end, and so does 11; 7 is not a number.
  kept = [0, 1, 2, 3, 6, 8, 9, 10]
  assert state.replay.size == len(kept)
  storage = state.replay.storage
  np.testing.assert_array_equal(storage.reward[:8], kept)
  np.testing.assert_array_equal(storage.reward[8:], 0)
  np.testing.assert_array_equal(storage.observation[:8, 1], -np.array(kept))
  np.testing.assert_array_equal(
    storage.next_observation[:8, 0], np.add(kept, 1))
  if not sees_targets:
    assert storage.extras == {}
    return
  # One that is far outside says only that it is.
  np.testing.assert_allclose(
    storage.extras["descriptor"][:8], [[-1, 0]] * 4 + [[10, -1]] * 4, atol=1e-6)
  np.testing.assert_allclose(
    storage.extras["target"][:8], [[0, 1]] * 4 + [[0.5, 0]] * 4, atol=1e-6)


def _trained(teacher, reward):
  """Trains on an episode with such rewards."""

  @jax.jit
  def train(evaluated):
    state = teacher.remember(
      teacher.init(jax.random.key(0)), evaluated, jnp.array([[5.0, 100.0]]))
    return teacher.train(state, jax.random.key(1))

  return train(_told([[[reward] * _TIMES]], [[_TIMES]], [[0.0, 50.0]]))


@pytest.mark.parametrize("reward", [3.5, -7.0])
def test_rewards_are_weighted_by_how_near_an_episode_came(reward):
  state, metrics = _trained(_teacher(sees_targets=True), reward)
  distance = np.sqrt(0.5**2 + 1.0**2)  # Where the bounds are -1 and 1.
  expected = np.exp(-distance / 0.5) * max(reward + 2.0, 0)
  np.testing.assert_allclose(metrics["reward"], expected, rtol=1e-5)
  # The target is what a critic sees last.
  assert metrics["seen"] == 1
  assert state.agent == 2  # Updates, of two critic steps each.


def test_without_targets_rewards_are_as_they_are_and_bounds_not_needed():
  _, metrics = _trained(_teacher(False, _unbounded()), -7.0)
  assert metrics["reward"] == -7 and metrics["seen"] == 7


def test_nothing_is_learned_before_there_is_enough():
  teacher = _teacher(True, _setup(min_replay_size=4))
  state, metrics = _trained(teacher, 1.0)
  assert state.agent == 0 and np.isnan(metrics["reward"])
  elites_ = map_elites.Elite({"offset": jnp.ones(1), "gain": jnp.ones(1)}, {})
  improved = teacher.improve(
    state, elites_, jnp.array([[0.0, 0.0]]), jax.random.key(2))
  assert improved == elites_


def test_agents_are_improved_for_their_targets_and_keep_hyperparameters():
  teacher = _teacher(sees_targets=True)
  state, _ = _trained(teacher, 1.0)
  parents = map_elites.Elite(
    {"offset": jnp.zeros(2), "gain": jnp.ones(2)}, {"noise": jnp.arange(2.0)})
  targets = jnp.array([[10.0, 100.0], [0.0, 75.0]])
  improved = teacher.improve(state, parents, targets, jax.random.key(2))
  np.testing.assert_allclose(improved.genotype["offset"], [202.0, 200.5])
  np.testing.assert_array_equal(improved.hyperparams["noise"], [0, 1])
  own = teacher.policies(state, targets)
  np.testing.assert_array_equal(own.genotype["gain"], [2, 2])
  np.testing.assert_allclose(own.hyperparams["noise"], [0.1, 0.1])


def test_an_agent_that_diverges_begins_anew_with_what_was_stored():
  def diverge(state, hyperparams, transitions, key):
    return state + jnp.nan, {"loss": jnp.nan}

  teacher = _teacher(False, _setup(_learner(diverge)))
  state, metrics = _trained(teacher, 1.0)
  assert state.agent == 0 and metrics["num_restarts"] == 1
  assert state.replay.size == _TIMES


def _unbounded():
  walk = _Walk()
  walk.descriptor = environments.Descriptor(
    ("x", "steps"), (-math.inf, 0.0), (math.inf, 100.0))
  env = environments.Environment(walk, episode_length=_TIMES)
  return _setup()._replace(env=env, eval_env=env)


@pytest.mark.parametrize(("setup", "message"), [
  (_setup(replay_capacity=23), "replay_capacity=23 is less than the 24 tra"),
  (_unbounded(), "of x, steps aren't all finite; give")])
def test_what_could_not_teach_is_refused(setup, message):
  qd = setup.map_elites._replace(emitter="dcrl")
  with pytest.raises(ValueError, match=message):
    common.shapes(setup._replace(map_elites=qd))


@pytest.mark.parametrize(("walk", "learner", "message"), [
  (toy.Countdown(3), _learner(), "with state descriptors; take one"),
  (_Walk(), toy.linear_learner(), "can't share its own; take td3")])
def test_by_hand_what_could_not_teach_is_refused(walk, learner, message):
  env = environments.Environment(walk, episode_length=_TIMES)
  with pytest.raises(ValueError, match=message):
    training.teacher(env, learner, sees_targets=True)


@pytest.mark.parametrize(("size", "shares", "expected"), [
  (64, (0.5, 1 / 64), (32, 1, 31)),
  # A share is never rounded to none, as long as there are enough.
  (4, (0.1, 0.1), (1, 1, 2)), (1, (0.5, 0.5), (1, 0, 0))])
def test_offspring_are_divided_by_their_shares(size, shares, expected):
  assert training.TeachingConfig().counts(size, *shares) == expected
  own = training.TeachingConfig(
    gradient_share=shares[0], injection_share=shares[1])
  assert own.counts(size, 0.9, 0.1) == expected
  with pytest.raises(ValueError, match="1 and injection_share=.* are more"):
    dataclasses.replace(own, gradient_share=1.0).counts(size, *shares)


@pytest.mark.parametrize("emitter", [
  "ga", "dcrl", "cma", "me_es", "ascii",
  tuple(map(training.Part, ("ga", "pga")))])
def test_what_is_kept_is_the_same_in_programs_that_enable_float64(emitter):
  learner = learners.td3(
    toy.Walk.observation_size, toy.Walk.action_size, learners.TD3Config(
      network=networks.NetworkConfig((2,)), own_critics=False))
  setup = _setup(learner)
  setup = setup._replace(map_elites=setup.map_elites._replace(emitter=emitter))
  expected = common.shapes(setup)
  with jax.enable_x64(True):
    first = common.shapes(setup)
    after, _ = jax.eval_shape(
      functools.partial(common.step, setup), first, common.KEY)
  assert str(first) == str(after) == str(expected)
