"""Tests of the policies."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special, stats

from qdrl_haiku import policies

_KEY = jax.random.key(0)
# Towards the border by halves, down to the last float32 inside; towards 0.
_INTERIOR = np.concatenate([
  1 - 2.0 ** -np.arange(1, 25), 2.0 ** -np.arange(1, 40),
  np.linspace(0, 0.999, 50)]).astype(np.float32)
_INTERIOR = np.concatenate([_INTERIOR, -_INTERIOR])


def _loc_and_scale(parameters):
  """Returns the float64 location and scale that parameters stand for."""
  loc, raw_scale = np.split(np.asarray(parameters, np.float64), 2, axis=-1)
  return loc, np.logaddexp(0.0, raw_scale) + 1e-3


def _log_prob_of_action(parameters, action):
  """The normal's log-density and the change of variables, at an action."""
  loc, scale = _loc_and_scale(parameters)
  action = np.asarray(action, np.float64)
  log_prob = stats.norm.logpdf(np.arctanh(action), loc, scale)
  return (log_prob - np.log(1 - action**2)).sum(axis=-1)


def _log_prob_of_pre_tanh(parameters, x):
  """The same, at the value before the tanh."""
  loc, scale = _loc_and_scale(parameters)
  x = np.asarray(x, np.float64)
  log_det = 2 * (np.log(2) - x - np.logaddexp(0.0, -2 * x))
  return (stats.norm.logpdf(x, loc, scale) - log_det).sum(axis=-1)


def _parameters(loc, scale):
  """Returns parameters of that location and, nearly, that scale."""
  loc, scale = np.broadcast_arrays(loc, scale)
  raw_scale = np.log(np.expm1(scale - 1e-3))
  return jnp.asarray(np.concatenate([loc, raw_scale], -1), jnp.float32)


def test_location_comes_first_and_scale_is_softplus_plus_minimum():
  policy = policies.normal_tanh(jnp.array([0.5, -2.0, 0.0, -50.0]))
  normal = policy.distribution.distribution
  np.testing.assert_allclose(normal.loc, [0.5, -2.0])
  np.testing.assert_allclose(normal.scale, [np.log(2) + 1e-3, 1e-3], rtol=1e-6)


@pytest.mark.parametrize(("loc", "scale"), [(0.0, 2.0), (-1.5, 0.1)])
def test_log_prob_matches_scipy_everywhere_inside(loc, scale):
  action = _INTERIOR[:, None]
  parameters = _parameters(np.array([loc]), scale)
  actual = policies.normal_tanh(parameters).log_prob(jnp.asarray(action))
  expected = _log_prob_of_action(parameters, action)
  np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)


def test_log_prob_at_the_border_is_that_of_the_nearest_number_inside():
  policy = policies.normal_tanh(jnp.array([0.3, -0.2]))
  border = np.float32([[-1.0], [1.0]])
  log_prob = policy.log_prob(jnp.asarray(border))
  assert np.isfinite(log_prob).all()
  inside = np.nextafter(border, np.float32(0))
  np.testing.assert_array_equal(log_prob, policy.log_prob(jnp.asarray(inside)))


def test_sample_and_log_prob_matches_its_own_pre_tanh_value():
  loc = np.array([-50.0, -8.0, -1.0, 0.0, 1.0, 8.0, 50.0])[:, None, None]
  scale = np.array([1e-2, 0.7])[:, None]
  parameters = _parameters(loc * np.ones(2), scale)
  policy = policies.normal_tanh(parameters)
  # The same key gives the same x; the next line checks that it is.
  x = policy.distribution.sample(seed=_KEY, sample_shape=(64,))
  action, log_prob = policy.sample_and_log_prob(seed=_KEY, sample_shape=(64,))
  np.testing.assert_array_equal(action, jnp.tanh(x))
  assert action.shape == (64, 7, 2, 2)
  expected = _log_prob_of_pre_tanh(parameters, x)
  np.testing.assert_allclose(log_prob, expected, rtol=1e-5, atol=1e-5)
  assert policy.log_prob(action).shape == log_prob.shape == (64, 7, 2)
  assert (policy.batch_shape, policy.event_shape) == ((7, 2), (2,))
  np.testing.assert_allclose(
    policy.mode(), np.tanh(loc) * np.ones((2, 2)), rtol=1e-6)


def test_samples_follow_the_tanh_of_the_normal_and_stay_in_the_box():
  parameters = _parameters(np.array([0.5, -1.0]), 0.6)
  samples = policies.normal_tanh(parameters).sample(
    seed=_KEY, sample_shape=(2000,))
  x = np.arctanh(np.asarray(samples, np.float64))
  for i, loc in enumerate([0.5, -1.0]):
    assert stats.kstest(x[:, i], stats.norm(loc, 0.6).cdf).pvalue > 0.01
  assert abs(np.corrcoef(x.T)[0, 1]) < 0.1
  far = policies.normal_tanh(jnp.array([30.0, -30.0, 3.0, 3.0]))
  np.testing.assert_array_equal(far.sample(seed=_KEY), [1.0, -1.0])


# By parameters and action.
_GRADIENTS = jax.jit(
  jax.grad(lambda p, a: policies.normal_tanh(p).log_prob(a), argnums=(0, 1)))


def test_gradient_of_log_prob_matches_its_closed_form():
  parameters = _parameters(np.array([0.5]), 0.8)
  loc, scale = (float(x[0]) for x in _loc_and_scale(parameters))
  x = 1.25
  action = jnp.array([np.tanh(x)], jnp.float32)
  to_parameters, to_action = _GRADIENTS(parameters, action)
  z = (x - loc) / scale
  # The slope of softplus is the logistic function of the raw scale.
  to_raw = (z**2 - 1) / scale * special.expit(float(parameters[1]))
  np.testing.assert_allclose(to_parameters, [z / scale, to_raw], rtol=1e-4)
  slope = 1 - np.tanh(x) ** 2
  expected = -z / scale / slope + 2 * np.tanh(x) / slope
  np.testing.assert_allclose(to_action, [expected], rtol=1e-4)


def test_gradients_are_finite_at_the_border_and_when_saturated():
  for action in ([-1.0], [1.0]):
    gradients = _GRADIENTS(jnp.array([0.5, 0.1]), jnp.array(action))
    assert all(np.isfinite(x).all() for x in gradients)
    assert np.all(gradients[0] != 0)

  def total(loc):
    policy = policies.normal_tanh(jnp.stack([loc, jnp.float32(0.5)]))
    action, log_prob = policy.sample_and_log_prob(seed=_KEY)
    return action.sum() + log_prob

  # The action no longer moves; -log_det grows by 2 with each unit of x.
  slopes = jax.jit(jax.vmap(jax.grad(total)))(
    jnp.array([-100.0, -8.0, 8.0, 100.0]))
  np.testing.assert_allclose(slopes, [-2, -2, 2, 2], rtol=1e-4)


def test_deterministic_mode_and_samples_are_the_tanh():
  parameters = np.float32([[0.5, -2.0], [0.0, 40.0]])
  policy = policies.deterministic_tanh(jnp.asarray(parameters))
  expected = np.tanh(parameters.astype(np.float64))
  np.testing.assert_allclose(policy.mode(), expected, rtol=1e-6)
  samples = policy.sample(seed=_KEY, sample_shape=(3,))
  np.testing.assert_allclose(samples, [expected] * 3, rtol=1e-6)


def test_a_categorical_policy_is_the_softmax_of_its_outputs():
  logits = np.float32([[0.5, -2.0, 1.0], [0.0, 40.0, 40.0]])
  probs = special.softmax(logits.astype(np.float64), axis=-1)
  policy = policies.Categorical(jnp.asarray(logits))
  np.testing.assert_array_equal(policy.mode(), [2, 1])
  entropy, told = policy.mean_entropy(_KEY)
  np.testing.assert_allclose(
    entropy, special.entr(probs).sum(-1).mean(), rtol=1e-5)
  assert told == {}
  many = policies.Categorical(jnp.repeat(jnp.asarray(logits), 5000, axis=0))
  action, drawn = many.draw(_KEY)
  assert action.dtype == jnp.int32 and drawn is action
  counts = [np.bincount(x, minlength=3) for x in action.reshape(2, -1)]
  assert np.all(np.abs(np.stack(counts) / 5000 - probs) < 0.03)
  np.testing.assert_allclose(
    many.log_prob_of_drawn(action), np.log(
      np.take_along_axis(np.repeat(probs, 5000, 0), action[:, None], 1)[:, 0]),
    rtol=1e-5)


def test_a_categorical_policy_is_judged_by_the_expected_smaller_value():
  policy = policies.Categorical(jnp.log(jnp.array([6.0, 2.0])))
  q = jnp.array([[2.0, 5.0], [4.0, 1.0]])
  value, log_prob, told = policy.judged(lambda: q, _KEY)
  np.testing.assert_allclose(value, [0.75 * 2 + 0.25 * 1], rtol=1e-6)
  np.testing.assert_allclose(
    log_prob, 0.75 * np.log(0.75) + 0.25 * np.log(0.25), rtol=1e-6)
  assert told == {}


def test_a_diverged_policy_chooses_an_action_that_there_is():
  action, _ = policies.Categorical(jnp.full((4, 3), jnp.nan)).draw(_KEY)
  np.testing.assert_array_equal(action, np.zeros(4))
