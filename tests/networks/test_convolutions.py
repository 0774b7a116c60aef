"""Tests of networks that see images."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qdrl_haiku import networks, specs
from tests.learners import reference

_KEY = jax.random.key(0)
_CONV = networks.NetworkConfig((8,), network="conv")
# Sides of which strides leave a rest; (size of the window, stride) of each.
_CASES = {
  "small": (specs.Array((7, 5, 2), "uint8"), [(3, 1)]),
  "large": (specs.Array((37, 47, 2)), [(8, 4), (4, 2), (3, 1)])}


def _relu(x):
  return np.maximum(x, 0)


def _convolved(layer, image, size, stride):
  """A convolution of one image in float64, place by place."""
  reach = size // stride
  # The weights are in blocks of the stride's size.
  w = layer["w"].reshape(reach, reach, stride, stride, image.shape[-1], -1)
  w = w.transpose(0, 2, 1, 3, 4, 5).reshape(size, size, image.shape[-1], -1)
  rows, columns = (
    range(0, n - size + 1, stride) for n in image.shape[:2])
  return _relu(np.array([
    [np.tensordot(image[i : i + size, j : j + size], w, 3) for j in columns]
    for i in rows]) + layer["b"])


def _expected(params, layers, observation, *others):
  """A network's outputs for one observation in float64."""
  params = reference.float64(params)
  x = observation["camera"]
  x = x.astype(np.float64) / (255 if x.dtype == np.uint8 else 1)
  for i, layer in enumerate(layers):
    x = _convolved(params.pop(f"convolution_{i}"), x, *layer)
  seen = np.concatenate([x.ravel(), observation["speed"], *others])
  return reference.mlp(params, seen, _relu)


def _drawn(tree):
  rng = np.random.default_rng(0)
  return jax.tree.map(
    lambda x: jnp.asarray(
      rng.integers(256, size=x.shape) if x.dtype == jnp.uint8
      else 0.3 * rng.normal(size=x.shape), x.dtype),
    tree)


@pytest.mark.parametrize("case", _CASES)
def test_networks_are_float64_convolutions_and_perceptrons(case):
  camera, layers = _CASES[case]
  spec = {"camera": camera, "speed": specs.Array((3,))}
  made = networks.make_sac_networks(spec, 2, _CONV)
  policy, critic = (_drawn(jax.eval_shape(x.init, _KEY)) for x in made)
  observation = _drawn(specs.shapes(spec, 2, 1))
  action = np.linspace(-1, 1, 4, dtype=np.float32).reshape(2, 1, 2)

  def outputs(policy, critic):
    values = made.critic.apply(critic, observation, action)
    return made.policy.apply(policy, observation), values

  logits, values = jax.jit(outputs)(policy, critic)
  assert logits.shape == (2, 1, 4) and values.shape == (2, 1, 2)
  for i in range(2):
    one = jax.tree.map(lambda x: np.asarray(x[i, 0]), observation)  # noqa: B023
    own = [jax.tree.map(lambda x: x[j], critic) for j in range(2)]  # noqa: B023
    np.testing.assert_allclose(
      logits[i, 0], _expected(policy, layers, one), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(
      values[i, 0], [_expected(x, layers, one, action[i, 0])[0] for x in own],
      rtol=1e-4, atol=1e-4)
  gradients = jax.jit(jax.grad(
    lambda params: sum(map(jnp.sum, outputs(*params)))))((policy, critic))
  assert all(jnp.any(x != 0) for x in jax.tree.leaves(gradients))


@pytest.mark.parametrize("spec", [
  5, {"frames": specs.Array((4, 84, 84), "uint8")}, specs.Array((2, 9, 1)),
  {"speed": specs.Array((3,)), "privileged": specs.Array((9, 9, 1))}], ids=str)
def test_what_is_no_image_is_refused(spec):
  with pytest.raises(ValueError, match="network=conv sees images .*=mlp, or"):
    networks.make_ppo_networks(spec, 2, _CONV)


def test_networks_with_batch_normalisation_are_refused():
  with pytest.raises(ValueError, match="conv has no batch .*learner=sac or"):
    networks.make_crossq_networks(_CASES["small"][0], 2, _CONV)
