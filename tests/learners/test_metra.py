"""Tests of what METRA does to transitions, and of what it learns."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qdrl_haiku import learners, skills
from tests.learners import common, reference
from tests.learners.test_diayn import _spy

_O, _B, _K = common.OBSERVATION_SIZE, common.BATCH_SIZE, 2
_PRIORS = {"sphere": skills.sphere(_K), "discrete": skills.categorical(4)}
_agent, _update = common.observing, common.update_spied


def _learner(prior):
  config = learners.METRAConfig(
    (5,), activation="tanh", normalize_observations=True)
  return learners.metra(_spy(), _O, prior, config=config)


def _batch(prior, seed=0):
  transitions = common.transitions(1, _B, seed=seed)
  keys = jax.random.split(jax.random.key(seed), (1, _B))
  skill = jax.vmap(jax.vmap(prior.sample))(keys)
  return skill, transitions._replace(
    observation=jnp.concatenate([transitions.observation, skill], axis=-1),
    next_observation=jnp.concatenate(
      [transitions.next_observation, skill], axis=-1))


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
  state = _agent(learner)
  skill, batch = _batch(prior)
  after, metrics = _update(learner, state, batch, task_reward_weight=0.5)
  skill = np.asarray(skill, np.float64)
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
  state = _agent(learner)
  # The next state says the skill.
  skill, batch = _batch(prior)
  next_observation = batch.next_observation.at[..., :_K].set(3 * skill)
  batch = batch._replace(next_observation=next_observation)
  for _ in range(400):
    state, metrics = _update(
      learner, state, batch, representation_learning_rate=1e-2,
      multiplier_learning_rate=1e-2)
  assert 0.5 < metrics["intrinsic_reward"] <= 1.01
  assert 0 <= metrics["constraint_slack"] < 1.001e-3


@pytest.mark.parametrize(
  "name",
  [
    "constraint_slack", "multiplier_learning_rate",
    "representation_learning_rate", "task_reward_weight"])
def test_every_hyperparameter_changes_what_is_learned(name):
  prior = _PRIORS["sphere"]
  learner = _learner(prior)
  state = _agent(learner)
  _, batch = _batch(prior)
  before, _ = _update(learner, state, batch)
  after, _ = _update(learner, state, batch, **{name: 0.3})
  common.assert_changed(before, after)


def test_a_genotype_keeps_the_representation_and_begins_its_optimisers():
  learner = _learner(_PRIORS["sphere"])
  _, batch = _batch(_PRIORS["sphere"])
  state, _ = _update(learner, _agent(learner), batch)
  again = learner.from_genotype(learner.genotype(state))
  for name in ("representation_params", "log_multiplier"):
    jax.tree.map(
      np.testing.assert_array_equal, getattr(again, name), getattr(state, name))
  assert not any(
    np.any(x) for x in jax.tree.leaves(again.representation_optimizer_state))
