"""Tests of SAC."""

import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats

from tests import jaxprs
from tests.learners import common, reference

_CASE = common.case("sac")
_LEARNER = _CASE.learner
_NETWORKS = ("policy_params", "critic_params", "target_critic_params")


def _noises(key):
  """The noise of the two policy evaluations, at the next observations first."""
  shape = (common.BATCH_SIZE, common.ACTION_SIZE)
  return [
    np.asarray(jax.random.normal(k, shape), np.float64)
    for k in jax.random.split(key)
  ]


def test_updates_are_those_of_the_float64_reference():
  state = common.agent(_LEARNER)
  expected = reference.float64(state)
  hyperparams = common.hyperparams(
    _LEARNER, discount=0.9, reward_scaling=2.0, target_entropy=-1.5
  )
  for i in range(2):
    key, batches = jax.random.key(i), common.batches(_LEARNER, seed=i)
    state, metrics = _CASE.update(state, hyperparams, batches, key)
    expected, expected_metrics = reference.sac_update(
      expected, hyperparams, batches, _noises(key)
    )
    common.assert_close(metrics, expected_metrics, rtol=1e-4, atol=1e-5)
  common.assert_close(state, expected, rtol=1e-4, atol=1e-5)


def test_the_policy_is_evaluated_twice():
  """Temperature and policy share an evaluation; the target has the other."""
  size = common.OBSERVATION_SIZE
  shapes = [
    [v.aval.shape for v in e.invars]
    for e in jaxprs.named(
      _LEARNER.update, "dot_general", common.agent(_LEARNER),
      _LEARNER.hyperparams, common.batches(_LEARNER), jax.random.key(0),
    )
  ]
  assert shapes.count([(common.BATCH_SIZE, size), (size, 4)]) == 2


def test_the_temperature_moves_the_entropy_to_its_target():
  state = common.agent(_LEARNER)
  for target_entropy, sign in ((-50.0, -1), (50.0, 1)):
    after, _ = _CASE.update(
      state, common.hyperparams(_LEARNER, target_entropy=target_entropy),
      common.batches(_LEARNER), jax.random.key(0),
    )
    step = float(after.log_temperature - state.log_temperature)
    np.testing.assert_allclose(step, sign * 0.03, rtol=1e-4)


def test_exploration_is_the_policy_itself():
  state = common.agent(_LEARNER)
  observation = common.observations(1)[0]
  actions = _CASE.act(
    state, common.hyperparams(_LEARNER), jnp.tile(observation, (2000, 1)),
    jax.random.key(0),
  )
  numbers = reference.float64(state)
  outputs = reference.mlp(
    numbers.policy_params,
    reference.normalize(numbers.observation_statistics, observation),
  )
  x = np.arctanh(np.asarray(actions, np.float64))
  for i in range(common.ACTION_SIZE):
    scale = np.log1p(np.exp(outputs[common.ACTION_SIZE + i])) + 1e-3
    assert stats.kstest((x[:, i] - outputs[i]) / scale, "norm").pvalue > 0.01
  np.testing.assert_allclose(
    _CASE.act_greedy(state, observation),
    np.tanh(outputs[: common.ACTION_SIZE]),
    rtol=1e-5, atol=1e-6,
  )
