"""Tests of distributions over atoms."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from absl.testing import parameterized

from qdrl_haiku import losses

_ATOMS = [-2.0, -1.0, 0.0, 1.0, 2.0]


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


def test_a_two_hot_distribution_has_the_value_for_its_mean():
  rng = np.random.default_rng(0)
  atoms = np.linspace(-37.5, 37.5, 51, dtype=np.float32)
  value = rng.uniform(-37.5, 37.5, 200).astype(np.float32)
  found = jax.vmap(losses.two_hot, in_axes=(0, None))(value, atoms)
  found = np.asarray(found, np.float64)
  np.testing.assert_allclose(found.sum(axis=1), 1.0, atol=1e-5)
  np.testing.assert_allclose(found @ atoms.astype(np.float64), value, atol=1e-3)
  assert ((found > 1e-6).sum(axis=1) <= 2).all()


def test_another_rank_is_refused():
  for loss in (losses.two_hot, losses.categorical_value):
    with pytest.raises(AssertionError):
      loss(jnp.ones((2, 2)), jnp.ones((2, 2)))
