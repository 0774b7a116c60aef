"""Tests of twin critics with batch normalisation."""

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


def _critic(name):
  critic = _MADE[name].critic
  return critic, *jax.jit(critic.init)(jax.random.key(0))


@_EACH
def test_twins_have_weights_of_their_own_and_one_output_each(name):
  critic, params, state = _critic(name)
  for module, values in params.items():
    assert {x.shape[0] for x in values.values()} == {2}
    if "w" in values:
      assert np.all(values["w"][0] != values["w"][1]), module
  outputs, _ = critic.apply(params, state, *_inputs(8), is_training=True)
  assert outputs.shape == (8, 2, {"crossq": 1, "xqc": 7}[name])
  assert len(np.unique(outputs[:, :, 0])) == 16


@_EACH
def test_without_training_examples_are_apart(name):
  critic, params, state = _critic(name)
  observation, action = _inputs(2, 4)

  def outputs(observation, action):
    found, same = critic.apply(
      params, state, observation, action, is_training=False
    )
    jax.tree.map(np.testing.assert_array_equal, same, state)
    return found

  together = outputs(observation, action)
  assert together.shape[:3] == (2, 4, 2)
  for i in np.ndindex(2, 4):
    np.testing.assert_allclose(
      together[i], outputs(observation[i], action[i]), rtol=1e-5, atol=1e-6
    )


@_EACH
def test_in_training_the_other_half_of_a_batch_counts(name):
  critic, params, state = _critic(name)
  first, second, other = _inputs(8), _inputs(8), _inputs(8)

  def half(more, rows=slice(8)):
    both = (jnp.concatenate(x) for x in zip(first, more, strict=True))
    return np.asarray(
      critic.apply(params, state, *both, is_training=True, rows=rows)[0]
    )

  # Outputs of some are those among all, of the same statistics.
  np.testing.assert_allclose(
    half(second), half(second, slice(None))[:8], rtol=1e-5, atol=1e-6
  )
  assert np.abs(half(second) - half(other)).max() > 1e-2


def test_xqcs_weights_begin_with_unit_norm():
  _, params, _ = _critic("xqc")
  for values in params.values():
    if "w" in values:
      norms = np.linalg.norm(values["w"], axis=-2)
      np.testing.assert_allclose(norms, 1.0, rtol=1e-5)
