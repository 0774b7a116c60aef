"""Tests of TD3."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from tests.learners import common, reference

_CASE = common.case("td3")
_LEARNER = _CASE.learner
_DELAYS = (1, 2, 3)


def test_exploration_noise_is_live():
  state, observation = common.agent(_LEARNER), common.observations(4)
  actions = [
    _CASE.act(
      state, common.hyperparams(_LEARNER, exploration_noise=noise),
      observation, jax.random.key(0),
    )
    for noise in (0.1, 0.08, 0.0)
  ]
  assert np.all(np.any(actions[0] != actions[1], axis=-1))
  common.assert_equal(actions[2], _CASE.act_greedy(state, observation))


def test_exploration_noise_is_normal_around_the_greedy_action():
  state = common.agent(_LEARNER)
  observation = jnp.tile(common.observations(1), (2000, 1))
  noise = _CASE.act(
    state, common.hyperparams(_LEARNER, exploration_noise=0.01), observation,
    jax.random.key(0),
  ) - _CASE.act_greedy(state, observation)
  for i in range(common.ACTION_SIZE):
    assert stats.kstest(np.asarray(noise)[:, i] / 0.01, "norm").pvalue > 0.01
  assert abs(np.corrcoef(noise.T)[0, 1]) < 0.1


@pytest.mark.parametrize("policy_delay", _DELAYS)
def test_updates_are_those_of_the_float64_reference(policy_delay):
  case = common.case("td3", policy_delay=policy_delay)
  state = common.agent(case.learner)
  expected = reference.float64(state)
  hyperparams = common.hyperparams(
    case.learner, discount=0.9, reward_scaling=2.0, target_noise_scale=0.4,
  )
  for i in range(2):
    key, batches = jax.random.key(i), common.batches(case.learner, seed=i)
    noise = np.asarray(
      jax.random.normal(key, batches.action.shape), np.float64
    )
    assert np.any(0.4 * np.abs(noise) > hyperparams["target_noise_clip"])
    state, metrics = case.update(state, hyperparams, batches, key)
    expected, expected_metrics = reference.td3_update(
      expected, hyperparams, batches, noise
    )
    common.assert_close(metrics, expected_metrics, rtol=1e-4, atol=1e-5)
  common.assert_close(state, expected, rtol=1e-4, atol=1e-5)
