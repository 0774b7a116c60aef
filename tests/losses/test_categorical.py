"""Tests of distributions over atoms."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qdrl_haiku import losses

_ATOMS = [-2.0, -1.0, 0.0, 1.0, 2.0]


def test_two_hot_and_value_are_as_worked_by_hand():
  two_hot = jax.jit(losses.two_hot)
  for value, expected in (
    (0.25, [0, 0, 0.75, 0.25, 0]),
    (-1.0, [0, 1, 0, 0, 0]),
    (-7.0, [1, 0, 0, 0, 0]),
    (2.5, [0, 0, 0, 0, 1]),
  ):
    actual = two_hot(jnp.float32(value), jnp.float32(_ATOMS))
    np.testing.assert_allclose(actual, expected, atol=1e-6)
  # Three in four on 1, the rest on -2.
  logits = np.log(np.float32([0.25, 0.0, 0.0, 0.75, 0.0]) + 1e-30)
  value = jax.jit(losses.categorical_value)(logits, jnp.float32(_ATOMS))
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
