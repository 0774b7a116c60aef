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


def test_xqcs_policy_has_no_small_weights():
  shape = networks.NetworkConfig(policy_final_init="small")
  with pytest.raises(ValueError, match="policy_final_init=small has no effect"):
    networks.make_xqc_networks(3, 2, shape, num_atoms=7)


@_EACH
def test_a_policy_without_batch_normalisation_acts_as_with_it(name):
  policy = _MADE[name].policy
  variables = jax.jit(policy.init)(jax.random.key(0))
  for _ in range(3):
    _, variables = policy.in_training(variables, 2.0 * _inputs(20)[0] + 1.0)
  layers = networks.without_batch_norm(variables)
  (observation, _), layer = _inputs(7), layers["policy/linear_0"]
  hidden = jax.nn.relu(observation @ layer["w"] + layer["b"])
  output = layers["policy/output"]
  np.testing.assert_allclose(
    hidden @ output["w"] + output["b"],
    policy.apply(variables, observation),
    rtol=1e-4, atol=1e-5,
  )  # fmt: skip
