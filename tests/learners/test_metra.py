"""Tests of what METRA does to transitions, and of what it learns."""

import functools

import jax
import numpy as np
import pytest

from qdrl_haiku import learners, skills
from tests.learners import common, reference
from tests.learners.test_diayn import _batches, _spy

_O, _K = common.OBSERVATION_SIZE, 2
_PRIORS = {"sphere": skills.sphere(_K), "discrete": skills.categorical(4)}
_agent, _update = common.observing, common.update_spied


@functools.cache
def _learner(prior):
  config = learners.METRAConfig(
    (5,), activation="tanh", normalize_observations=True)
  return learners.metra(_spy(), _O, prior, config=config)


def _phi(state, observation):
  """The representation of observations, in float64."""
  seen = reference.normalize(
    reference.float64(state.observation_statistics),
    np.asarray(observation[..., :_O], np.float64))
  params = reference.float64(state.representation_params)
  return reference.mlp(params, seen, np.tanh)


@pytest.mark.parametrize("kind", _PRIORS)
def test_the_agent_is_rewarded_for_moving_along_its_skill(kind):
  prior = _PRIORS[kind]
  learner = _learner(prior)
  state, batch = _agent(learner), _batches(prior=prior)
  after, metrics = _update(learner, state, batch, task_reward_weight=0.5)
  skill = np.asarray(batch.observation[..., _O:], np.float64)
  if kind == "discrete":
    skill = (4 * skill - 1) / 3
  moved = _phi(state, batch.next_observation) - _phi(state, batch.observation)
  intrinsic = np.sum(moved * skill, axis=-1)
  np.testing.assert_allclose(
    after.agent.transitions.reward, intrinsic + 0.5 * np.asarray(batch.reward),
    rtol=1e-4, atol=1e-5)
  np.testing.assert_allclose(
    metrics["intrinsic_reward"], intrinsic.mean(), rtol=1e-4, atol=1e-5)
  room = np.minimum(1e-3, 1 - np.sum(moved**2, axis=-1)).mean()
  np.testing.assert_allclose(metrics["constraint_slack"], room, atol=1e-5)
  # The first step of Adam has the length of its learning rate.
  rate = learner.hyperparams["multiplier_learning_rate"]
  np.testing.assert_allclose(
    after.log_multiplier - state.log_multiplier, -np.sign(room) * rate,
    rtol=1e-3)


def test_the_representation_learns_to_move_along_skills_but_not_too_far():
  prior = _PRIORS["sphere"]
  learner = _learner(prior)
  state, batch = _agent(learner), _batches(prior=prior)
  # The next state says the skill.
  next_observation = batch.next_observation.at[..., :_K].set(
    3 * batch.observation[..., _O:])
  batch = batch._replace(next_observation=next_observation)
  for _ in range(400):
    state, metrics = _update(
      learner, state, batch, representation_learning_rate=1e-2,
      multiplier_learning_rate=1e-2)
  assert 0.5 < metrics["intrinsic_reward"] <= 1.01
  assert 0 <= metrics["constraint_slack"] < 1.001e-3


def test_every_hyperparameter_changes_what_is_learned():
  prior = _PRIORS["sphere"]
  learner = _learner(prior)
  common.assert_live(learner, _agent(learner), _batches(prior=prior))


def test_a_genotype_keeps_the_representation_and_begins_its_optimisers():
  learner = _learner(_PRIORS["sphere"])
  state, _ = _update(
    learner, _agent(learner), _batches(prior=_PRIORS["sphere"]))
  again = learner.from_genotype(learner.genotype(state))
  for name in ("representation_params", "log_multiplier"):
    jax.tree.map(
      np.testing.assert_array_equal, getattr(again, name), getattr(state, name))
  assert not any(
    np.any(x) for x in jax.tree.leaves(again.representation_optimizer_state))
