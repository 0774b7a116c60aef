"""Tests of the losses of SAC."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from absl.testing import parameterized

from qdrl_haiku import losses

_CRITIC = {
  "q_tm1": [1.0, 2.0],
  "r_t": 0.5,
  "discount_t": 0.9,
  "q_t": [3.0, 2.0],
  "log_prob_t": -1.0,
  "temperature": 0.5,
}
_POLICY = {"q_t": [3.0, 2.0], "log_prob": -1.5, "temperature": 0.5}
_TEMPERATURE = {
  "log_temperature": -1.0,
  "log_prob": 1.5,
  "target_entropy": -2.0,
}

_CASES = (
  # y = 0.5 + 0.9 (2 + 0.5) = 2.75; 0.5 (1.75^2 + 0.75^2).
  ("critic", losses.sac_critic_loss, _CRITIC, 1.8125),
  # The same at a termination: y = 0.5; 0.5 (0.5^2 + 1.5^2).
  (
    "critic_at_termination",
    losses.sac_critic_loss,
    _CRITIC | {"discount_t": 0.0},
    1.25,
  ),
  # 0.5 * -1.5 - 2.
  ("policy", losses.sac_policy_loss, _POLICY, -2.75),
  # -exp(-1) (1.5 - 2).
  ("temperature", losses.sac_temperature_loss, _TEMPERATURE, 0.18393972),
)


def _arrays(example):
  return {name: jnp.asarray(value) for name, value in example.items()}


class HandWorkedTest(chex.TestCase):
  @chex.variants(with_jit=True, without_jit=True)
  @parameterized.named_parameters(*_CASES)
  def test_one_example(self, loss_fn, example, expected):
    loss = self.variant(loss_fn)(**_arrays(example))
    assert loss.shape == ()
    np.testing.assert_allclose(loss, expected, rtol=1e-6)

def _random(rng, shape, low=-5.0, high=5.0):
  return rng.uniform(low, high, shape).astype(np.float32)


def test_critic_loss_is_the_formula_in_float64():
  rng = np.random.default_rng(0)
  args = (
    _random(rng, (64, 2)),
    _random(rng, 64),
    _random(rng, 64, 0.0, 1.0),
    _random(rng, (64, 2)),
    _random(rng, 64),
    _random(rng, 64, 0.0, 2.0),
  )
  q_tm1, r_t, discount_t, q_t, log_prob_t, temperature = (
    x.astype(np.float64) for x in args
  )
  target = r_t + discount_t * (q_t.min(axis=1) - temperature * log_prob_t)
  expected = 0.5 * ((q_tm1 - target[:, None]) ** 2).sum(axis=1)
  actual = jax.vmap(losses.sac_critic_loss)(*args)
  np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)


def test_policy_loss_is_the_formula_in_float64():
  rng = np.random.default_rng(1)
  args = (_random(rng, (64, 2)), _random(rng, 64), _random(rng, 64, 0.0, 2.0))
  q_t, log_prob, temperature = (x.astype(np.float64) for x in args)
  expected = temperature * log_prob - q_t.min(axis=1)
  actual = jax.vmap(losses.sac_policy_loss)(*args)
  np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)


def test_temperature_loss_is_the_formula_in_float64():
  rng = np.random.default_rng(2)
  args = tuple(_random(rng, 64) for _ in range(3))
  log_temperature, log_prob, target_entropy = (
    x.astype(np.float64) for x in args
  )
  expected = -np.exp(log_temperature) * (log_prob + target_entropy)
  actual = jax.vmap(losses.sac_temperature_loss)(*args)
  np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)


def _gradients(loss_fn, example):
  return jax.grad(lambda kwargs: loss_fn(**kwargs))(_arrays(example))


def test_critic_loss_has_gradients_to_the_online_values_only():
  gradients = _gradients(losses.sac_critic_loss, _CRITIC)
  np.testing.assert_allclose(gradients.pop("q_tm1"), [-1.75, -0.75], rtol=1e-6)
  assert len(gradients) == 5
  for name, gradient in gradients.items():
    assert not np.any(gradient), name


def test_policy_loss_has_gradients_to_the_smaller_value_and_log_prob_only():
  gradients = _gradients(losses.sac_policy_loss, _POLICY)
  np.testing.assert_allclose(gradients["q_t"], [0.0, -1.0])
  np.testing.assert_allclose(gradients["log_prob"], 0.5)
  assert gradients["temperature"] == 0.0


def test_temperature_loss_has_gradients_to_log_temperature_only():
  gradients = _gradients(losses.sac_temperature_loss, _TEMPERATURE)
  np.testing.assert_allclose(
    gradients["log_temperature"], 0.5 * np.exp(-1.0), rtol=1e-6
  )
  assert gradients["log_prob"] == 0.0
  assert gradients["target_entropy"] == 0.0


def test_temperature_rises_where_entropy_is_below_its_target():
  # log_prob 3 is an entropy of -3, below the target of -2.
  example = _TEMPERATURE | {"log_prob": 3.0}
  gradients = _gradients(losses.sac_temperature_loss, example)
  assert gradients["log_temperature"] < 0.0


@pytest.mark.parametrize(
  ("loss_fn", "example", "name"),
  [
    (loss_fn, example, name)
    for _, loss_fn, example, _ in (_CASES[0], *_CASES[2:])
    for name in example
  ],
)
def test_another_rank_is_refused(loss_fn, example, name):
  arrays = _arrays(example)
  arrays[name] = arrays[name][None]
  with pytest.raises(AssertionError, match="rank"):
    loss_fn(**arrays)
