"""Tests of the losses of TD3 and of its target action."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from absl.testing import parameterized
from scipy import stats

from qdrl_haiku import losses

_CRITIC = {
  "q_tm1": [1.0, 2.0],
  "r_t": 0.5,
  "discount_t": 0.9,
  "q_t": [3.0, 2.0],
}
_POLICY = {"q_t": [3.0, 2.0]}
_ACTION = {"action": [0.2, -0.3], "noise_scale": 0.2, "noise_clip": 0.5}

_CASES = (
  # y = 0.5 + 0.9 * 2 = 2.3; 0.5 (1.3^2 + 0.3^2).
  ("critic", losses.td3_critic_loss, _CRITIC, 0.89),
  # The same at a termination: y = 0.5; 0.5 (0.5^2 + 1.5^2).
  (
    "critic_at_termination",
    losses.td3_critic_loss,
    _CRITIC | {"discount_t": 0.0},
    1.25,
  ),
  # The first critic's, not the smaller one.
  ("policy", losses.td3_policy_loss, _POLICY, -3.0),
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

def test_critic_loss_is_the_formula_in_float64():
  rng = np.random.default_rng(0)
  shapes = ((64, 2), (64,), (64,), (64, 2))
  args = tuple(rng.uniform(-3, 3, s).astype(np.float32) for s in shapes)
  q_tm1, r_t, discount_t, q_t = (x.astype(np.float64) for x in args)
  target = r_t + discount_t * q_t.min(axis=1)
  expected = 0.5 * ((q_tm1 - target[:, None]) ** 2).sum(axis=1)
  actual = jax.vmap(losses.td3_critic_loss)(*args)
  np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)


def test_critic_loss_has_gradients_to_the_online_values_only():
  gradients = jax.grad(lambda kwargs: losses.td3_critic_loss(**kwargs))(
    _arrays(_CRITIC)
  )
  np.testing.assert_allclose(gradients.pop("q_tm1"), [-1.3, -0.3], rtol=1e-6)
  assert len(gradients) == 3
  for name, gradient in gradients.items():
    assert not np.any(gradient), name


def test_policy_loss_has_a_gradient_to_the_first_critic_only():
  gradient = jax.grad(losses.td3_policy_loss)(jnp.array([3.0, 2.0]))
  np.testing.assert_array_equal(gradient, [-1.0, 0.0])


@pytest.mark.parametrize(
  ("loss_fn", "example", "name"),
  [
    (loss_fn, example, name)
    for loss_fn, example in (
      (losses.td3_critic_loss, _CRITIC),
      (losses.td3_policy_loss, _POLICY),
      (lambda **k: losses.td3_target_action(jax.random.key(0), **k), _ACTION),
    )
    for name in example
    if name != "action"  # A batch of actions is welcome.
  ],
)
def test_another_rank_is_refused(loss_fn, example, name):
  arrays = _arrays(example)
  arrays[name] = arrays[name][None]
  with pytest.raises(AssertionError, match="rank"):
    loss_fn(**arrays)


def _target_actions(action, noise_scale, noise_clip, num=2000):
  """Returns [num, A] target actions, each with a key of its own."""
  keys = jax.random.split(jax.random.key(0), num)
  return np.asarray(
    jax.jit(jax.vmap(losses.td3_target_action, in_axes=(0, None, None, None)))(
      keys, jnp.asarray(action), jnp.asarray(noise_scale), noise_clip
    )
  )


def test_target_actions_of_a_batch_have_noise_of_their_own():
  actions = losses.td3_target_action(
    jax.random.key(0), jnp.zeros((3, 2)), 0.1, 0.5
  )
  assert len(np.unique(actions)) == 6


def test_target_action_without_noise_is_the_action():
  actions = _target_actions([0.25, -1.0], 0.0, 0.5, num=3)
  np.testing.assert_array_equal(actions, [[0.25, -1.0]] * 3)


def test_target_noise_is_normal_with_the_given_scale():
  noise = _target_actions([0.1, -0.1], 0.05, 0.9) - np.float32([0.1, -0.1])
  for i in range(2):
    assert stats.kstest(noise[:, i] / 0.05, "norm").pvalue > 0.01
  assert abs(np.corrcoef(noise.T)[0, 1]) < 0.1


def test_target_noise_is_clipped_on_both_sides():
  noise = _target_actions([0.0], 0.5, 0.25)
  assert noise.min() == -0.25
  assert noise.max() == 0.25
  # Only what is beyond half a standard deviation is at the clip.
  clipped = np.mean(np.abs(noise) == 0.25)
  np.testing.assert_allclose(clipped, 2 * stats.norm.sf(0.5), atol=0.04)


def test_target_action_stays_in_the_action_box():
  actions = _target_actions([0.9, -0.9], 0.5, 0.5)
  assert actions[:, 0].max() == 1.0
  assert actions[:, 1].min() == -1.0


def test_target_action_has_no_gradient():
  def total(action, noise_scale, noise_clip):
    return losses.td3_target_action(
      jax.random.key(0), action, noise_scale, noise_clip
    ).sum()

  gradients = jax.grad(total, argnums=(0, 1, 2))(
    jnp.array([0.2, -0.3]), 0.2, 0.5
  )
  for gradient in gradients:
    assert not np.any(gradient)


def test_target_action_depends_on_the_key():
  actions = _target_actions([0.0, 0.0], 0.1, 0.5, num=2)
  assert len(np.unique(actions)) == 4
