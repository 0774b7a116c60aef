"""Tests of twin critics with batch normalisation."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qdrl_haiku import networks

_SHAPE = networks.NetworkConfig(
  policy_hidden_layer_sizes=(4,), critic_hidden_layer_sizes=(5, 6)
)
_MADE = {
  "crossq": networks.make_crossq_networks(3, 2, _SHAPE),
  "xqc": networks.make_xqc_networks(3, 2, _SHAPE, num_atoms=7),
}
_EACH = pytest.mark.parametrize("name", _MADE)
_RNG = np.random.default_rng(0)


def _inputs(*shape):
  return tuple(
    jnp.asarray(_RNG.normal(size=(*shape, n)), jnp.float32) for n in (3, 2)
  )


@_EACH
def test_without_training_examples_are_apart(name):
  critic = _MADE[name].critic
  params, state = jax.jit(critic.init)(jax.random.key(0))
  outputs = jax.jit(functools.partial(critic.apply, is_training=False))
  inputs = _inputs(2, 4)
  together, same = outputs(params, state, *inputs)
  assert together.shape == (2, 4, 2, {"crossq": 1, "xqc": 7}[name])
  assert len(np.unique(together[..., 0])) == 16
  alone, _ = outputs(params, state, *(x[1, 2] for x in inputs))
  np.testing.assert_allclose(together[1, 2], alone, rtol=1e-5, atol=1e-6)
  jax.tree.map(np.testing.assert_array_equal, same, state)


def test_xqcs_weights_begin_with_unit_norm():
  params, _ = jax.jit(_MADE["xqc"].critic.init)(jax.random.key(0))
  for values in params.values():
    if "w" in values:
      norms = np.linalg.norm(values["w"], axis=-2)
      np.testing.assert_allclose(norms, 1.0, rtol=1e-5)
      assert np.all(values["w"][0] != values["w"][1])
