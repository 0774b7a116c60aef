"""Tests of the losses of critics that hold distributions."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from absl.testing import parameterized

from qdrl_haiku import losses

_ATOMS = [-2.0, -1.0, 0.0, 1.0, 2.0]
_UNIFORM = [0.0] * 5
_CRITIC = {
  "logits_tm1": [_UNIFORM, _UNIFORM],
  "r_t": 0.5,
  "discount_t": 0.5,
  "q_t": [3.0, 2.0],
  "log_prob_t": 1.0,
  "temperature": 0.5,
  "atoms": _ATOMS,
}


class HandWorkedTest(chex.TestCase):
  @chex.variants(with_jit=True, without_jit=True)
  @parameterized.named_parameters(
    ("between", 0.25, [0, 0, 0.75, 0.25, 0]),
    ("on_one", -1.0, [0, 1, 0, 0, 0]),
    ("below", -7.0, [1, 0, 0, 0, 0]),
    ("above", 2.5, [0, 0, 0, 0, 1]),
  )
  def test_two_hot(self, value, expected):
    actual = self.variant(losses.two_hot)(
      jnp.float32(value), jnp.float32(_ATOMS)
    )
    np.testing.assert_allclose(actual, expected, atol=1e-6)

  @chex.variants(with_jit=True, without_jit=True)
  def test_value(self):
    # Three in four on 1, the rest on -2.
    logits = jnp.log(jnp.array([0.25, 0.0, 0.0, 0.75, 0.0]) + 1e-30)
    value = self.variant(losses.categorical_value)(logits, jnp.float32(_ATOMS))
    np.testing.assert_allclose(value, 0.25, rtol=1e-6)

  @chex.variants(with_jit=True, without_jit=True)
  @parameterized.named_parameters(
    # y = 0.5 + 0.5 (2 - 0.5) = 1.25, wherever it is: 2 log 5.
    ("uniform", {}, 2 * np.log(5)),
    # The first critic has e^2 of e^2 + 4 on 1, of which y has 0.75.
    (
      "sharper",
      {"logits_tm1": [[0.0, 0.0, 0.0, 2.0, 0.0], _UNIFORM]},
      np.log(np.exp(2) + 4) - 0.75 * 2 + np.log(5),
    ),
    # y = 0.5 at a termination, half of it on 1.
    (
      "at_termination",
      {
        "discount_t": 0.0,
        "logits_tm1": [[0.0, 0.0, 0.0, 2.0, 0.0], _UNIFORM],
      },
      np.log(np.exp(2) + 4) - 0.5 * 2 + np.log(5),
    ),
  )
  def test_critic(self, changes, expected):
    example = {k: jnp.float32(v) for k, v in (_CRITIC | changes).items()}
    loss = self.variant(losses.xqc_critic_loss)(**example)
    assert loss.shape == ()
    np.testing.assert_allclose(loss, expected, rtol=1e-6)


def test_a_two_hot_distribution_has_the_value_for_its_mean():
  rng = np.random.default_rng(0)
  atoms = np.linspace(-37.5, 37.5, 51, dtype=np.float32)
  value = rng.uniform(-37.5, 37.5, 200).astype(np.float32)
  found = jax.vmap(losses.two_hot, in_axes=(0, None))(value, atoms)
  found = np.asarray(found, np.float64)
  np.testing.assert_allclose(found.sum(axis=1), 1.0, atol=1e-5)
  np.testing.assert_allclose(found @ atoms.astype(np.float64), value, atol=1e-3)
  assert ((found > 1e-6).sum(axis=1) <= 2).all()


def test_the_gradient_goes_to_the_logits_only_and_is_the_papers():
  """softmax - two_hot, for each critic."""
  rng = np.random.default_rng(1)
  example = {k: jnp.float32(v) for k, v in _CRITIC.items()}
  example["logits_tm1"] = jnp.asarray(rng.normal(size=(2, 5)), jnp.float32)
  gradients = jax.grad(lambda x: losses.xqc_critic_loss(**x))(example)
  logits = np.asarray(example["logits_tm1"], np.float64)
  weights = np.exp(logits)
  expected = weights / weights.sum(axis=1, keepdims=True)
  expected -= [0, 0, 0, 0.75, 0.25]
  np.testing.assert_allclose(gradients.pop("logits_tm1"), expected, atol=1e-6)
  assert not any(np.any(x) for x in gradients.values())


def test_another_rank_is_refused():
  example = {k: jnp.float32(v) for k, v in _CRITIC.items()}
  for name in example:
    with pytest.raises(AssertionError):
      losses.xqc_critic_loss(**example | {name: example[name][None]})
  for loss in (losses.two_hot, losses.categorical_value):
    with pytest.raises(AssertionError):
      loss(jnp.ones((2, 2)), jnp.ones((2, 2)))
