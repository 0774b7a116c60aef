"""Tests of what DIAYN does to transitions, before its base learner learns."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special, stats

from qdrl_haiku import learners, skills
from qdrl_haiku.learners import statistics
from tests.learners import common, reference
from tests.learners import diayn_common as diayn

_O = common.OBSERVATION_SIZE
_K = diayn.NUM_SKILLS
_D = diayn.DESCRIPTOR_SIZE
_B = common.BATCH_SIZE


def _inputs(state, batch, discriminator_input):
  """What the discriminator is to see of a batch, in float64."""
  if discriminator_input == "descriptor":
    return np.asarray(batch.extras["next_descriptor"], np.float64)
  return reference.normalize(
    reference.float64(state.observation_statistics),
    np.asarray(batch.next_observation, np.float64)[..., :_O],
  )


def _log_q_categorical(parameters, skill):
  return np.sum(special.log_softmax(parameters, axis=-1) * skill, axis=-1)


def _log_q_circle(parameters, skill):
  angle = np.arctan2(skill[..., 1], skill[..., 0])
  mean = np.arctan2(parameters[..., 1], parameters[..., 0])
  concentration = np.linalg.norm(parameters, axis=-1)
  return stats.vonmises.logpdf(angle - mean, concentration)


def _log_q_normal(parameters, skill):
  loc, raw_scale = np.split(parameters, 2, axis=-1)
  scale = np.log1p(np.exp(raw_scale)) + 1e-3
  return np.sum(stats.norm.logpdf(skill, loc, scale), axis=-1)


_KINDS = pytest.mark.parametrize(
  ("prior", "log_q", "log_prior"),
  [
    (diayn.PRIOR, _log_q_categorical, lambda z: -np.log(_K)),
    (skills.sphere(2), _log_q_circle, lambda z: -np.log(2 * np.pi)),
    (
      skills.normal(2),
      _log_q_normal,
      lambda z: np.sum(stats.norm.logpdf(z), axis=-1),
    ),
  ],
  ids=["categorical", "circle", "normal"],
)
_INPUTS = pytest.mark.parametrize(
  "discriminator_input", ["descriptor", "observation"]
)


@_INPUTS
@_KINDS
def test_rewards_are_those_of_the_next_states_in_float64(
  prior, log_q, log_prior, discriminator_input
):
  learner = diayn.spied(prior, discriminator_input=discriminator_input)
  state, batches = diayn.agent(learner), diayn.batches(prior=prior)
  after, metrics = diayn.update(learner, state, batches)
  parameters = reference.mlp(
    reference.float64(state.discriminator_params),
    _inputs(state, batches, discriminator_input),
  )
  skill = np.asarray(batches.observation, np.float64)[..., _O:]
  expected = log_q(parameters, skill) - log_prior(skill)
  assert np.ptp(expected) > 1.0
  np.testing.assert_allclose(
    after.agent.transitions.reward, expected, rtol=1e-5, atol=1e-5
  )
  np.testing.assert_allclose(
    metrics["intrinsic_reward"], expected.mean(), rtol=1e-5, atol=1e-5
  )


def test_without_the_log_prior_rewards_are_lower_by_it():
  batches = diayn.batches()
  with_term, without = (
    diayn.update(x, diayn.agent(x), batches)[0].agent.transitions.reward
    for x in (diayn.spied(), diayn.spied(subtract_log_prior=False))
  )
  np.testing.assert_allclose(with_term - without, np.log(_K), rtol=1e-5)


def test_the_task_reward_is_added_by_its_weight():
  learner, batches = diayn.spied(), diayn.batches()
  state = diayn.agent(learner)
  alone, alone_metrics = diayn.update(learner, state, batches)
  mixed, metrics = diayn.update(
    learner, state, batches, task_reward_weight=np.float32(0.5)
  )
  difference = mixed.agent.transitions.reward - alone.agent.transitions.reward
  np.testing.assert_allclose(
    difference, 0.5 * batches.reward, rtol=1e-4, atol=1e-6
  )
  assert metrics["intrinsic_reward"] == alone_metrics["intrinsic_reward"]


def _loss(inputs, skill, params):
  """The cross-entropy of a discriminator of discrete skills."""
  parameters = reference.mlp(params, inputs)
  return -np.mean(_log_q_categorical(parameters, skill))


@_INPUTS
def test_each_batch_is_relabelled_and_then_a_step_of_adam(discriminator_input):
  learner = diayn.spied(
    batches_per_update=2, discriminator_input=discriminator_input
  )
  state = diayn.agent(learner)
  expected = reference.float64(state)
  params = expected.discriminator_params
  moments = expected.discriminator_optimizer_state
  for seed in range(2):
    batches = diayn.batches(2, seed=seed)
    inputs = _inputs(state, batches, discriminator_input)
    skill = np.asarray(batches.observation, np.float64)[..., _O:]
    losses, norms = [], []
    state, metrics = diayn.update(learner, state, batches)
    for n in range(2):
      # Of the discriminator before this batch.
      rewards = _log_q_categorical(reference.mlp(params, inputs[n]), skill[n])
      np.testing.assert_allclose(
        state.agent.transitions.reward[n],
        rewards + np.log(_K),
        rtol=1e-4,
        atol=1e-5,
      )
      loss = functools.partial(_loss, inputs[n], skill[n])
      gradients = reference.gradient(loss, params)
      losses.append(loss(params))
      norms.append(reference.norm(gradients))
      params, moments = reference.adam(
        gradients,
        moments,
        params,
        diayn.HYPERPARAMS["discriminator_learning_rate"],
      )
    np.testing.assert_allclose(
      metrics["discriminator_loss"], np.mean(losses), rtol=1e-4
    )
    np.testing.assert_allclose(
      metrics["gradient_norm/discriminator"], np.mean(norms), rtol=1e-4
    )
  common.assert_close(state.discriminator_params, params, 1e-4, 1e-5)
  common.assert_close(
    state.discriminator_optimizer_state, moments, 1e-4, 1e-6
  )


@_INPUTS
def test_the_discriminator_never_sees_the_skill(discriminator_input):
  judge = learners.discriminator(
    _O,
    diayn.PRIOR,
    _D,
    diayn.config(discriminator_input=discriminator_input),
  )
  state = diayn.agent(diayn.spied(discriminator_input=discriminator_input))
  observation = diayn.batches().next_observation
  descriptor = diayn.batches().extras["next_descriptor"]
  first = judge.parameters(state, observation, descriptor)
  other = judge.parameters(
    state, observation.at[..., _O:].set(9.0), descriptor
  )
  assert first.shape == (1, _B, _K)
  np.testing.assert_array_equal(first, other)


def test_the_discriminator_of_observations_needs_no_descriptor():
  learner = learners.diayn(
    diayn.spy(),
    _O,
    diayn.PRIOR,
    None,
    diayn.config(discriminator_input="observation"),
  )
  batches = diayn.batches()._replace(extras={})
  after, _ = diayn.update(learner, diayn.agent(learner), batches)
  assert np.isfinite(after.agent.transitions.reward).all()


@pytest.mark.parametrize(
  "make",
  [
    lambda: learners.diayn(diayn.spy(), _O, diayn.PRIOR),
    lambda: learners.discriminator(_O, diayn.PRIOR),
  ],
  ids=["learner", "discriminator"],
)
def test_an_environment_without_a_descriptor_is_refused(make):
  with pytest.raises(
    ValueError, match="discriminator_input=descriptor, .* no .*descriptor; take"
  ):
    make()


def test_transitions_without_descriptors_are_refused():
  """Such as those of a replay buffer that doesn't store them."""
  learner = diayn.spied()
  with pytest.raises(ValueError, match="next_descriptor"):
    learner.update(
      diayn.agent(learner),
      diayn.HYPERPARAMS,
      diayn.batches()._replace(extras={}),
      jax.random.key(0),
    )


def _normalized(state, observation):
  """Observations of which all but the skill is normalised."""
  observation = np.asarray(observation, np.float64)
  return np.concatenate(
    [
      reference.normalize(
        reference.float64(state.observation_statistics), observation[..., :_O]
      ),
      observation[..., _O:],
    ],
    axis=-1,
  )


def test_everything_sees_the_same_normalised_observation_and_the_skill():
  prior = skills.normal(2)
  learner = diayn.spied(prior)
  state, batches = diayn.agent(learner), diayn.batches(prior=prior)
  # Beyond where normalised observations are clipped.
  batches = batches._replace(
    observation=batches.observation.at[..., _O:].multiply(50.0)
  )
  expected = _normalized(state, batches.observation)
  assert np.abs(expected).max() > 10
  after, _ = diayn.update(learner, state, batches)
  seen = {
    "update": after.agent.transitions.observation,
    "greedy": learner.act_greedy(state, batches.observation),
    "act": learner.act(
      state, diayn.HYPERPARAMS, batches.observation, jax.random.key(0)
    )
    / 3.0,
    "observe": learner.observe(state, batches.observation).agent.observation,
  }
  for name, observation in seen.items():
    np.testing.assert_allclose(
      observation, expected, rtol=1e-5, atol=1e-5, err_msg=name
    )
  np.testing.assert_allclose(
    after.agent.transitions.next_observation,
    _normalized(state, batches.next_observation),
    rtol=1e-5,
    atol=1e-5,
  )


def test_only_observe_changes_the_statistics_and_skills_are_no_part_of_them():
  learner = diayn.spied()
  state, batches = diayn.agent(learner), diayn.batches()
  observed = learner.observe(state, batches.observation)
  common.assert_equal(
    observed.observation_statistics,
    statistics.update(
      state.observation_statistics, batches.observation[..., :_O]
    ),
  )
  after, _ = diayn.update(learner, state, batches)
  common.assert_equal(
    after.observation_statistics, state.observation_statistics
  )


def test_without_normalisation_observations_stay_as_they_are():
  learner = diayn.spied(normalize_observations=False)
  state, batches = diayn.agent(learner), diayn.batches()
  assert state.observation_statistics is None
  after, _ = diayn.update(learner, state, batches)
  for observation in (
    after.agent.transitions.observation,
    learner.act_greedy(state, batches.observation),
  ):
    np.testing.assert_array_equal(observation, batches.observation)
  assert learner.observe(state, batches.observation)[1:] == state[1:]


def test_the_base_learner_gets_its_own_and_all_else_as_it_is():
  learner, batches = diayn.spied(), diayn.batches()
  after, metrics = diayn.update(learner, diayn.agent(learner), batches)
  seen = after.agent.transitions
  common.assert_equal(
    seen._replace(observation=0, reward=0, next_observation=0),
    batches._replace(observation=0, reward=0, next_observation=0),
  )
  assert after.agent.hyperparams == {"gain": diayn.HYPERPARAMS["gain"]}
  assert after.agent.key == jax.random.key(3)
  assert metrics["spied"] == 7.0


class _Gains(NamedTuple):
  gain: float
  more: tuple[float, ...]


@pytest.mark.parametrize(
  "hyperparams",
  [_Gains(3.0, (4.0, 5.0)), {"task_reward_weight": 3.0}, 3.0],
  ids=["tuple", "same name", "number"],
)
def test_other_trees_of_the_base_learner_are_an_entry_of_ours(hyperparams):
  seen = []

  def act(state, hyperparams, observation, key):
    seen.append(hyperparams)
    return observation

  base = diayn.spy()._replace(hyperparams=hyperparams, act=act)
  learner = learners.diayn(
    base, common.OBSERVATION_SIZE, diayn.PRIOR, diayn.DESCRIPTOR_SIZE
  )
  assert learner.hyperparams == {
    "base": hyperparams,
    "discriminator_learning_rate": 1e-3,
    "task_reward_weight": 0.0,
  }
  changed = jax.tree.map(jnp.float32, learner.hyperparams)
  changed["task_reward_weight"] = jnp.float32(1.0)
  batches = diayn.batches()
  state = common.fresh(learner)
  after, _ = jax.jit(learner.update)(
    state, changed, batches, jax.random.key(3)
  )
  assert after.agent.hyperparams == hyperparams
  learner.act(state, changed, batches.observation, jax.random.key(0))
  assert seen == [hyperparams]


def test_a_genotype_is_the_base_learners_and_has_no_optimizer():
  learner = diayn.spied()
  state, _ = diayn.update(learner, diayn.agent(learner), diayn.batches())
  assert state.discriminator_optimizer_state.count == 1
  genotype = learner.genotype(state)
  assert len(jax.tree.leaves(genotype)) == len(
    jax.tree.leaves(
      ("stored", 0.0, state.discriminator_params, state.observation_statistics)
    )
  )
  after = learner.from_genotype(genotype)
  # As the spy's `from_genotype` makes it.
  assert after.agent.weight == state.agent.weight + 1.0
  assert after.agent.transitions is None
  common.assert_equal(after.discriminator_params, state.discriminator_params)
  common.assert_equal(
    after.observation_statistics, state.observation_statistics
  )
  common.assert_equal(
    after.discriminator_optimizer_state,
    common.fresh(learner).discriminator_optimizer_state,
  )
