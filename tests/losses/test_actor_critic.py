"""Tests of the losses of SAC, TD3 and XQC, TD3's target action, and atoms."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from qdrl_haiku import losses

_TD3 = {"q_tm1": [1.0, 2.0], "r_t": 0.5, "discount_t": 0.9, "q_t": [3.0, 2.0]}
_SAC = _TD3 | {"log_prob_t": -1.0, "temperature": 0.5}
_TEMPERATURE = {
  "log_temperature": -1.0, "log_prob": 1.5, "target_entropy": -2.0}
_UNIFORM = [0.0] * 5
# The first critic has e^2 of e^2 + 4 on 1.
_SHARP = [0.0, 0.0, 0.0, 2.0, 0.0]
_XQC = {
  "logits_tm1": [_SHARP, _UNIFORM], "r_t": 0.5, "discount_t": 0.5,
  "q_t": [3.0, 2.0], "log_prob_t": 1.0, "temperature": 0.5,
  "atoms": [-2.0, -1.0, 0.0, 1.0, 2.0]}
_SUM = np.exp(2) + 4
_SOFTMAX = np.array([[1, 1, 1, np.exp(2), 1], [_SUM / 5] * 5]) / _SUM

# Loss, example, its loss, and the gradients that aren't 0.
_CASES = (
  # y = 0.5 + 0.9 (2 + 0.5) = 2.75; 0.5 (1.75^2 + 0.75^2).
  ("sac", losses.sac_critic_loss, _SAC, 1.8125, {"q_tm1": [-1.75, -0.75]}),
  # y = 0.5; 0.5 (0.5^2 + 1.5^2).
  ("sac_termination", losses.sac_critic_loss, _SAC | {"discount_t": 0.0}, 1.25,
   {"q_tm1": [0.5, 1.5]}),
  # As "sac", and 0.5 * 1.25^2 of a third critic.
  ("three_critics", losses.sac_critic_loss,
   _SAC | {"q_tm1": [1.0, 2.0, 4.0], "q_t": [3.0, 2.0, 5.0]}, 2.59375,
   {"q_tm1": [-1.75, -0.75, 1.25]}),
  # y = 0.5 + 0.9 * 3 = 3.2; 0.5 * 2.2^2.
  ("one_critic", losses.td3_critic_loss, _TD3 | {"q_tm1": [1.0], "q_t": [3.0]},
   2.42, {"q_tm1": [-2.2]}),
  # 0.5 * -1.5 - 2.
  ("sac_policy", losses.sac_policy_loss,
   {"q_t": [3.0, 2.0], "log_prob": -1.5, "temperature": 0.5}, -2.75,
   {"q_t": [0.0, -1.0], "log_prob": 0.5}),
  # -exp(-1) (1.5 - 2): the temperature falls where the entropy, -1.5, is above
  # its target, -2, and rises where it's below.
  ("temperature_falls", losses.sac_temperature_loss, _TEMPERATURE,
   0.5 * np.exp(-1), {"log_temperature": 0.5 * np.exp(-1)}),
  ("temperature_rises", losses.sac_temperature_loss,
   _TEMPERATURE | {"log_prob": 3.0}, -np.exp(-1),
   {"log_temperature": -np.exp(-1)}),
  # y = 0.5 + 0.9 * 2 = 2.3; 0.5 (1.3^2 + 0.3^2).
  ("td3", losses.td3_critic_loss, _TD3, 0.89, {"q_tm1": [-1.3, -0.3]}),
  ("td3_termination", losses.td3_critic_loss, _TD3 | {"discount_t": 0.0}, 1.25,
   {"q_tm1": [0.5, 1.5]}),
  # The first critic's, not the smaller one.
  ("td3_policy", losses.td3_policy_loss, {"q_t": [3.0, 2.0]}, -3.0,
   {"q_t": [-1.0, 0.0]}),
  # y = 0.5 + 0.5 (2 - 0.5) = 1.25: 0.75 of it on 1; softmax - two_hot.
  ("xqc", losses.xqc_critic_loss, _XQC, np.log(_SUM) - 0.75 * 2 + np.log(5),
   {"logits_tm1": _SOFTMAX - [0, 0, 0, 0.75, 0.25]}),
  # y = 0.5, half of it on 1.
  ("xqc_termination", losses.xqc_critic_loss, _XQC | {"discount_t": 0.0},
   np.log(_SUM) - 0.5 * 2 + np.log(5),
   {"logits_tm1": _SOFTMAX - [0, 0, 0.5, 0.5, 0]}))


def _arrays(example):
  return {name: jnp.float32(value) for name, value in example.items()}


@pytest.mark.parametrize(
  ("loss_fn", "example", "expected", "slopes"), [case[1:] for case in _CASES],
  ids=[case[0] for case in _CASES])
def test_one_example_is_as_worked_by_hand(loss_fn, example, expected, slopes):
  loss, gradients = jax.jit(
    jax.value_and_grad(lambda example: loss_fn(**example)))(_arrays(example))
  assert loss.shape == ()
  np.testing.assert_allclose(loss, expected, rtol=1e-6)
  for name, gradient in gradients.items():
    np.testing.assert_allclose(
      gradient, slopes.get(name, np.zeros_like(gradient)), rtol=1e-5,
      atol=1e-6, err_msg=name)


@pytest.mark.parametrize(("loss_fn", "example"), [
  *(case[1:3] for case in _CASES),
  (lambda **k: losses.td3_target_action(
     jax.random.key(0), jnp.zeros(2), **k
   ), {"noise_scale": 0.2, "noise_clip": 0.5}),
  (losses.two_hot, {"value": 0.5, "atoms": _XQC["atoms"]}),
  (losses.categorical_value, {"logits": _SHARP, "atoms": _XQC["atoms"]})])
def test_another_rank_is_refused(loss_fn, example):
  arrays = _arrays(example)
  for name in example:
    with pytest.raises(AssertionError, match="rank"):
      loss_fn(**arrays | {name: arrays[name][None]})


def _target_actions(action, noise_scale, noise_clip, num=2000):
  """Returns [num, A] target actions, each with a key of its own."""
  keys = jax.random.split(jax.random.key(0), num)
  return np.asarray(
    jax.jit(jax.vmap(losses.td3_target_action, in_axes=(0, None, None, None)))(
      keys, jnp.asarray(action), jnp.asarray(noise_scale), noise_clip))


def test_target_noise_is_normal_with_the_given_scale():
  noise = _target_actions([0.1, -0.1], 0.05, 0.9) - np.float32([0.1, -0.1])
  for i in range(2):
    assert stats.kstest(noise[:, i] / 0.05, "norm").pvalue > 0.01
  assert abs(np.corrcoef(noise.T)[0, 1]) < 0.1
  # Within a batch, which has one key, likewise.
  actions = losses.td3_target_action(
    jax.random.key(0), jnp.zeros((3, 2)), 0.1, 0.5)
  assert len(np.unique(actions)) == 6


def test_target_noise_and_target_actions_are_clipped_on_both_sides():
  actions = _target_actions([0.0, 0.9, -0.9], 0.5, 0.25)
  noise = actions[:, 0]
  assert (noise.min(), noise.max()) == (-0.25, 0.25)
  # Only what is beyond half a standard deviation is at the clip.
  clipped = np.mean(np.abs(noise) == 0.25)
  np.testing.assert_allclose(clipped, 2 * stats.norm.sf(0.5), atol=0.04)
  # The action's box.
  assert (actions[:, 1].max(), actions[:, 2].min()) == (1.0, -1.0)


def test_target_actions_have_no_gradient():
  gradients = jax.jit(jax.grad(
    lambda *args: losses.td3_target_action(jax.random.key(0), *args).sum(),
    argnums=(0, 1, 2)))(jnp.array([0.2, -0.3]), 0.2, 0.5)
  assert not any(np.any(x) for x in gradients)


def test_two_hot_and_value_are_as_worked_by_hand():
  two_hot = jax.jit(losses.two_hot)
  for value, expected in (
    (0.25, [0, 0, 0.75, 0.25, 0]),
    (-1.0, [0, 1, 0, 0, 0]),
    (-7.0, [1, 0, 0, 0, 0]),
    (2.5, [0, 0, 0, 0, 1]),
  ):
    actual = two_hot(jnp.float32(value), jnp.float32(_XQC["atoms"]))
    np.testing.assert_allclose(actual, expected, atol=1e-6)
  # Three in four on 1, the rest on -2.
  logits = np.log(np.float32([0.25, 0.0, 0.0, 0.75, 0.0]) + 1e-30)
  value = jax.jit(losses.categorical_value)(logits, jnp.float32(_XQC["atoms"]))
  np.testing.assert_allclose(value, 0.25, rtol=1e-6)
