"""Tests of batch normalisation and of weights of unit norm, in float64."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qdrl_haiku import networks
from tests.learners import reference

_EPSILON = 1e-3
_RNG = np.random.default_rng(0)
_INPUTS = _RNG.normal(2.0, 3.0, (16, 3)).astype(np.float32)
_WARM_UP = 5


def _layer(**settings):
  """A layer as a network, with a scale and offset that are not trivial."""
  made = networks.stateful_network(
    lambda inputs, is_training: networks.BatchNorm(**settings)(
      inputs, is_training),
    3)
  params, state = made.init(jax.random.key(0))
  params = {"batch_norm": {
    "scale": jnp.array([1.0, 2.0, 0.5]),
    "offset": jnp.array([0.0, -1.0, 3.0])}}
  return made.apply, params, state["batch_norm"]


def _with(state, **changes):
  return {"batch_norm": state | {k: jnp.asarray(v) for k, v in changes.items()}}


def _expected(inputs, mean, variance):
  normalized = (inputs.astype(np.float64) - mean) / np.sqrt(
    np.add(variance, _EPSILON))
  return normalized * [1.0, 2.0, 0.5] + [0.0, -1.0, 3.0]


@pytest.mark.parametrize("count, rate", [(0, 1.0), (3, 0.25), (5000, 0.01)])
def test_in_training_the_batchs_statistics_move_averages(count, rate):
  """Which have no bias at first, and forget later."""
  apply, params, state = _layer()
  before = _with(state, mean=[1.0, 2.0, 3.0], variance=[1.0, 4.0, 9.0],
                 count=np.int32(count))
  shape = (2, 8, 3)
  outputs, after = apply(
    params, before, _INPUTS.reshape(shape), is_training=True)
  expected = _expected(_INPUTS, _INPUTS.mean(0), _INPUTS.var(0))
  np.testing.assert_allclose(
    outputs, expected.reshape(shape), rtol=1e-4, atol=1e-5)
  after = after["batch_norm"]
  assert after["count"] == count + 1
  for name, batch in (("mean", _INPUTS.mean(0)), ("variance", _INPUTS.var(0))):
    old = np.asarray(before["batch_norm"][name], np.float64)
    np.testing.assert_allclose(
      after[name], old + rate * (batch - old), rtol=1e-5)


def test_units_far_from_zero_are_normalised_by_their_deviation():
  apply, params, state = _layer()
  inputs = _RNG.normal(1000, 0.1, (256, 3)).astype(np.float32)
  outputs, after = apply(params, _with(state), inputs, is_training=True)
  exact = inputs.astype(np.float64)
  np.testing.assert_allclose(
    outputs, _expected(inputs, exact.mean(0), exact.var(0)), atol=5e-3)
  np.testing.assert_allclose(
    after["batch_norm"]["variance"], exact.var(0), rtol=1e-4)


def test_otherwise_the_averages_are_used_and_stay():
  apply, params, state = _layer()
  before = _with(state, mean=[1.0, 2.0, 3.0], variance=[1.0, 4.0, 9.0])
  outputs, after = apply(params, before, _INPUTS[:1], is_training=False)
  expected = _expected(_INPUTS[:1], [1.0, 2.0, 3.0], [1.0, 4.0, 9.0])
  np.testing.assert_allclose(outputs, expected, rtol=1e-4)
  jax.tree.map(np.testing.assert_array_equal, after, before)


def test_batch_renormalisation_begins_after_the_warm_up():
  apply, params, state = _layer(renormalize=True, warm_up=_WARM_UP)
  # So far from the batch's that the last unit's corrections are at their ends.
  mean, variance = np.array([1.5, 2.5, 90.0]), np.array([9.0, 7.0, 0.01])
  batch_mean = _INPUTS.mean(0, dtype=np.float64)
  batch_variance = _INPUTS.var(0, dtype=np.float64)
  deviation = np.sqrt(batch_variance + _EPSILON)
  average_deviation = np.sqrt(variance + _EPSILON)
  r = np.clip(deviation / average_deviation, 1 / 3, 3)
  d = np.clip((batch_mean - mean) / average_deviation, -5, 5)
  assert r[2] == 3 and d[2] == -5
  for count in (_WARM_UP - 1, _WARM_UP):
    before = _with(state, mean=np.float32(mean), variance=np.float32(variance),
                   count=np.int32(count))
    outputs, _ = apply(params, before, _INPUTS, is_training=True)
    expected = (_INPUTS - batch_mean) / deviation
    if count == _WARM_UP:
      expected = expected * r + d  # Ioffe, algorithm 1.
    expected = expected * [1.0, 2.0, 0.5] + [0.0, -1.0, 3.0]
    np.testing.assert_allclose(outputs, expected, rtol=1e-4, atol=1e-4)


def test_the_gradient_goes_through_the_batchs_statistics_alone():
  """And not through the corrections of batch renormalisation."""
  apply, params, state = _layer(renormalize=True, warm_up=0)
  weights = _RNG.normal(size=(16, 3))
  r = np.clip(np.sqrt(_INPUTS.var(0) + _EPSILON), 1 / 3, 3)

  def loss(inputs):
    outputs, _ = apply(params, _with(state), inputs, is_training=True)
    return jnp.sum(outputs * jnp.float32(weights))

  def expected_loss(inputs):
    return np.sum(
      weights * r * _expected(inputs, inputs.mean(0), inputs.var(0)))

  np.testing.assert_allclose(
    jax.grad(loss)(jnp.asarray(_INPUTS)),
    reference.gradient(expected_loss, _INPUTS.astype(np.float64)),
    rtol=1e-3, atol=1e-5)


def test_weights_get_unit_norm_and_all_else_stays():
  weights = _RNG.normal(size=(2, 3, 4))
  weights[..., 0] = 0  # Which stays finite.
  params = {
    "linear_0": {"w": weights, "b": np.ones((2, 4))},
    "batch_norm_0": {"scale": np.full((2, 4), 3.0)}}
  params = jax.tree.map(jnp.float32, params)
  projected = networks.with_unit_norm(params)
  norms = np.maximum(np.linalg.norm(weights, axis=1, keepdims=True), 1e-9)
  np.testing.assert_allclose(
    projected["linear_0"]["w"], weights / norms, rtol=1e-5)
  for module, name in (("linear_0", "b"), ("batch_norm_0", "scale")):
    assert projected[module][name] is params[module][name]


_SHAPE = networks.NetworkConfig(
  policy_hidden_layer_sizes=(4,), critic_hidden_layer_sizes=(5, 6))
_MADE = {
  "crossq": networks.make_crossq_networks(3, 2, _SHAPE),
  "xqc": networks.make_xqc_networks(3, 2, _SHAPE, num_atoms=7)}
_EACH = pytest.mark.parametrize("name", _MADE)


def _inputs(*shape):
  rng = np.random.default_rng(0)
  return tuple(
    jnp.asarray(rng.normal(size=(*shape, n)), jnp.float32) for n in (3, 2))


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
