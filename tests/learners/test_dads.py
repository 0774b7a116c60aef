"""Tests of what DADS does to transitions, and of what it learns."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special

from qdrl_haiku import learners, skills
from qdrl_haiku.learners import statistics
from tests.learners import common, reference
from tests.learners.test_diayn import _batches, _spy

_O, _D, _M = common.OBSERVATION_SIZE, 2, 3
_PRIORS = {"sphere": skills.sphere(2), "discrete": skills.categorical(4)}
_NUM_OTHERS = 5
_agent, _update = common.observing, common.update_spied


@functools.cache
def _learner(prior, seen="descriptor"):
  config = learners.DADSConfig(
    (5,), activation="tanh", normalize_observations=True, num_components=_M,
    num_other_skills=_NUM_OTHERS, dynamics_input=seen)
  return learners.dads(_spy(), _O, prior, _D, config)


def _log_prob(state, batch, skill, changed):
  """The log-density of what changed, normalised, [B], in float64."""
  normalizer = reference.float64(state.observation_statistics)
  observation = np.asarray(batch.observation[0, :, :_O], np.float64)
  inputs = np.concatenate(
    [reference.normalize(normalizer, observation), skill], axis=-1)
  outputs = reference.mlp(
    reference.float64(state.dynamics_params), inputs, np.tanh)
  locations = outputs[:, _M:].reshape(len(outputs), _M, -1)
  squares = np.sum((changed[:, None] - locations) ** 2, axis=-1)
  log_probs = special.log_softmax(outputs[:, :_M], axis=-1) - squares / 2
  size = changed.shape[-1]
  return special.logsumexp(log_probs, axis=-1) - size / 2 * np.log(2 * np.pi)


@pytest.mark.parametrize("seen", ["descriptor", "observation"])
@pytest.mark.parametrize("kind", _PRIORS)
def test_rewards_compare_a_skills_density_with_those_of_others(kind, seen):
  prior = _PRIORS[kind]
  learner = _learner(prior, seen)
  state, batch = _agent(learner), _batches(prior=prior)
  after, metrics = _update(learner, state, batch, task_reward_weight=0.5)
  before, later = (
    np.asarray(x, np.float64)
    for x in (batch.extras["descriptor"][0], batch.extras["next_descriptor"][0])
  )
  if seen == "observation":
    before, later = (
      np.asarray(x[0, :, :_O], np.float64)
      for x in (batch.observation, batch.next_observation))
  difference = later - before
  changed = (difference - difference.mean(0)) / difference.std(0)
  skill = np.asarray(batch.observation[0, :, _O:], np.float64)
  own = _log_prob(state, batch, skill, changed)
  if kind == "discrete":
    others = [np.broadcast_to(z, skill.shape) for z in np.eye(4)]
  else:
    others = [np.roll(skill, i + 1, axis=0) for i in range(_NUM_OTHERS)]
  of_others = [_log_prob(state, batch, z, changed) for z in others]
  rewards = own - special.logsumexp(of_others, axis=0) + np.log(len(others))
  np.testing.assert_allclose(
    after.agent.transitions.reward[0], rewards + 0.5 * batch.reward[0],
    rtol=1e-3, atol=1e-4)
  np.testing.assert_allclose(metrics["dynamics_loss"], -own.mean(), rtol=1e-4)
  seen_differences = statistics.update_statistics(
    state.difference_statistics, jnp.float32(difference))
  common.assert_close(after.difference_statistics, seen_differences)


def test_dynamics_learn_where_skills_lead():
  prior = _PRIORS["sphere"]
  learner = _learner(prior)
  state, batch = _agent(learner), _batches(prior=prior)
  skill = batch.observation[..., _O:]
  ends = batch.extras["descriptor"] + 3 * skill
  batch = batch._replace(extras=batch.extras | {"next_descriptor": ends})
  for _ in range(300):
    state, metrics = _update(learner, state, batch, dynamics_learning_rate=0.02)
  assert metrics["intrinsic_reward"] > 0.5


def test_every_hyperparameter_changes_what_is_learned():
  prior = _PRIORS["sphere"]
  learner = _learner(prior)
  common.assert_live(learner, _agent(learner), _batches(prior=prior))


def test_a_genotype_keeps_the_dynamics_and_what_normalises_differences():
  learner = _learner(_PRIORS["sphere"])
  state, _ = _update(
    learner, _agent(learner), _batches(prior=_PRIORS["sphere"]))
  again = learner.from_genotype(learner.genotype(state))
  for name in ("dynamics_params", "difference_statistics"):
    common.assert_equal(getattr(again, name), getattr(state, name))
  moments = jax.tree.leaves(again.dynamics_optimizer_state)
  assert not any(np.any(x) for x in moments)


def test_a_batch_of_one_continuous_skill_is_refused():
  prior = _PRIORS["sphere"]
  learner = _learner(prior)
  batch = jax.tree.map(lambda x: x[:, :1], _batches(prior=prior))
  with pytest.raises(ValueError, match="there is one; take batch_size"):
    _update(learner, _agent(learner), batch)
