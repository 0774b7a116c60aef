"""Tests of the networks."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special

from qdrl_haiku import networks

_KEY = jax.random.key(0)
_O, _A, _K = 5, 3, 4
_MAKERS = [networks.make_sac_networks, networks.make_td3_networks]
_SMALL = {
  "policy_hidden_layer_sizes": (8, 6),
  "critic_hidden_layer_sizes": (7, 9),
}
_REFERENCES = {
  "elu": lambda x: np.where(x > 0, x, np.expm1(x)),
  # The usual approximation by a tanh.
  "gelu": lambda x: (
    x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
  ),
  "leaky_relu": lambda x: np.where(x > 0, x, 0.01 * x),
  "relu": lambda x: np.maximum(x, 0),
  "swish": lambda x: x * special.expit(x),
  "tanh": np.tanh,
}


def _make(maker=networks.make_sac_networks, **settings):
  config = networks.ResidualNetworkConfig(**(_SMALL | settings))
  return maker(_O, _A, config)


def _randomised(params):
  """Returns params with every leaf drawn anew, biases and offsets too."""
  rng = np.random.default_rng(0)
  return jax.tree.map(
    lambda x: jnp.asarray(rng.normal(size=x.shape), x.dtype), params
  )


def _inputs(*leading):
  rng = np.random.default_rng(1)
  observation = rng.normal(size=(*leading, _O)).astype(np.float32)
  action = rng.uniform(-1, 1, size=(*leading, _A)).astype(np.float32)
  return jnp.asarray(observation), jnp.asarray(action)


def _normalized(x, norm):
  """LayerNorm, in float64."""
  centred = x - x.mean(axis=-1, keepdims=True)
  variance = (centred**2).mean(axis=-1, keepdims=True)
  return centred / np.sqrt(variance + 1e-5) * norm["scale"] + norm["offset"]


def _residual_forward(params, name, inputs, num_blocks):
  """Returns the outputs of a SimBa network, in float64."""
  params = jax.tree.map(lambda x: np.asarray(x, np.float64), params)

  def linear(layer, x):
    return x @ params[f"{name}/{layer}"]["w"] + params[f"{name}/{layer}"]["b"]

  hidden = linear("linear_0", np.asarray(inputs, np.float64))
  for i in range(num_blocks):
    normalized = _normalized(hidden, params[f"{name}/layer_norm_{i}"])
    expanded = np.maximum(linear(f"expand_{i}", normalized), 0)
    hidden = hidden + linear(f"project_{i}", expanded)
  last = _normalized(hidden, params[f"{name}/layer_norm_{num_blocks}"])
  return linear("output", last)


def _forward(params, name, inputs, activation):
  """Returns the outputs of an MLP, in float64."""
  params = jax.tree.map(lambda x: np.asarray(x, np.float64), params)
  hidden = np.asarray(inputs, np.float64)
  i = 0
  while f"{name}/linear_{i}" in params:
    layer = params[f"{name}/linear_{i}"]
    hidden = hidden @ layer["w"] + layer["b"]
    if norm := params.get(f"{name}/layer_norm_{i}"):
      hidden = _normalized(hidden, norm)
    hidden = _REFERENCES[activation](hidden)
    i += 1
  return hidden @ params[f"{name}/output"]["w"] + params[f"{name}/output"]["b"]


@pytest.mark.parametrize("leading", [(), (4,), (2, 4)])
@pytest.mark.parametrize(
  ("maker", "policy_outputs"), list(zip(_MAKERS, [2 * _A, _A], strict=True))
)
def test_shapes_with_any_leading_axes(maker, policy_outputs, leading):
  made = _make(maker)
  observation, action = _inputs(*leading)
  parameters = made.policy.apply(made.policy.init(_KEY), observation)
  assert parameters.shape == (*leading, policy_outputs)
  values = made.critic.apply(made.critic.init(_KEY), observation, action)
  assert values.shape == (*leading, 2)


@pytest.mark.parametrize("layer_norm", [False, True])
@pytest.mark.parametrize("maker", _MAKERS)
def test_policy_equals_a_float64_forward_pass(maker, layer_norm):
  policy = _make(maker, layer_norm=layer_norm).policy
  params = _randomised(policy.init(_KEY))
  assert ("policy/layer_norm_1" in params) == layer_norm
  observation, _ = _inputs(10)
  np.testing.assert_allclose(
    policy.apply(params, observation),
    _forward(params, "policy", observation, "relu"),
    rtol=1e-5,
    atol=1e-5,
  )


@pytest.mark.parametrize("layer_norm", [False, True])
def test_critics_equal_two_float64_forward_passes(layer_norm):
  critic = _make(layer_norm=layer_norm).critic
  params = _randomised(critic.init(_KEY))
  assert ("critic/layer_norm_1" in params) == layer_norm
  observation, action = _inputs(10)
  inputs = np.concatenate([observation, action], axis=-1)
  expected = [
    _forward(
      jax.tree.map(lambda x, i=i: x[i], params), "critic", inputs, "relu"
    )
    for i in range(2)
  ]
  np.testing.assert_allclose(
    critic.apply(params, observation, action),
    np.concatenate(expected, axis=-1),
    rtol=1e-5,
    atol=1e-5,
  )


def test_residual_networks_equal_float64_forward_passes():
  made = _make(
    residual=True,
    policy_hidden_layer_sizes=(6,),
    critic_hidden_layer_sizes=(8, 8),
  )
  policy, critic = (_randomised(x.init(_KEY)) for x in made)
  assert policy["policy/expand_0"]["w"].shape == (6, 24)
  observation, action = _inputs(10)
  inputs = np.concatenate([observation, action], axis=-1)
  values = [
    _residual_forward(
      jax.tree.map(lambda x, i=i: x[i], critic), "critic", inputs, 2
    )
    for i in range(2)
  ]
  for actual, expected in (
    (
      made.policy.apply(policy, observation),
      _residual_forward(policy, "policy", observation, 1),
    ),
    (
      made.critic.apply(critic, observation, action),
      np.concatenate(values, axis=-1),
    ),
  ):
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(
  ("setting", "layer"),
  [("layer_norm", "layer_norm_0"), ("residual", "project_0")],
)
def test_critics_alone_may_have_what_policies_have_not(setting, layer):
  settings = {
    "policy_hidden_layer_sizes": (8, 8),
    "critic_hidden_layer_sizes": (8, 8),
  }
  for both, critics in ((False, True), (True, False), (True, None)):
    made = _make(**settings, **{setting: both, f"critic_{setting}": critics})
    policy, critic = (jax.eval_shape(x.init, _KEY) for x in made)
    assert (f"policy/{layer}" in policy) == both
    expected = both if critics is None else critics
    assert (f"critic/{layer}" in critic) == expected


@pytest.mark.parametrize("residual", [False, True])
def test_fixed_inputs_are_absorbed(residual):
  sizes = {"policy_hidden_layer_sizes": (8, 8)}
  policy = _make(**sizes, residual=residual, critic_residual=False).policy
  params = _randomised(policy.init(_KEY))
  observation, _ = _inputs(4)
  values = jnp.array([0.5, -2.0])
  whole = observation.at[:, 1:3].set(values)
  fixed = networks.fix_inputs(params, 1, values)
  np.testing.assert_allclose(
    policy.apply(fixed, jnp.delete(observation, np.array([1, 2]), axis=1)),
    policy.apply(params, whole),
    rtol=1e-4,
    atol=1e-4,
  )


@pytest.mark.parametrize("activation", list(_REFERENCES))
def test_each_activation_is_the_one_of_its_name(activation):
  made = _make(activation=activation, policy_hidden_layer_sizes=(8,))
  params = _randomised(made.policy.init(_KEY))
  observation, _ = _inputs(10)
  np.testing.assert_allclose(
    made.policy.apply(params, observation),
    _forward(params, "policy", observation, activation),
    rtol=1e-5,
    atol=1e-5,
  )


def test_the_first_value_has_no_gradient_to_the_second_critic():
  critic = _make(layer_norm=True).critic
  params = _randomised(critic.init(_KEY))
  observation, action = _inputs(4)
  gradients = jax.grad(
    lambda p: critic.apply(p, observation, action)[:, 0].sum()
  )(params)
  for gradient in jax.tree.leaves(gradients):
    assert np.any(gradient[0])
    assert not np.any(gradient[1])


def test_both_critics_are_one_product_per_layer():
  critic = _make().critic
  params = critic.init(_KEY)
  jaxpr = jax.make_jaxpr(critic.apply)(params, *_inputs(4))
  products = [e for e in jaxpr.eqns if e.primitive.name == "dot_general"]
  assert len(products) == 3


@pytest.mark.parametrize("maker", _MAKERS)
def test_the_same_key_gives_the_same_parameters_and_another_others(maker):
  for network in _make(maker):
    first, again = network.init(_KEY), network.init(_KEY)
    jax.tree.map(np.testing.assert_array_equal, first, again)
    other = network.init(jax.random.key(1))
    for name, layer in first.items():
      assert not np.any(layer["w"] == other[name]["w"]), name


def test_hidden_weights_start_with_variance_one_over_fan_in():
  made = networks.make_sac_networks(
    100, 1, networks.NetworkConfig((200,))
  )
  policy = made.policy.init(_KEY)["policy/linear_0"]
  # Cutting the normal at two standard deviations leaves 0.88 of the deviation.
  expected = 0.87962 / np.sqrt(100)
  np.testing.assert_allclose(np.std(policy["w"]), expected, rtol=0.03)
  assert not np.any(policy["b"])
  critic = made.critic.init(_KEY)["critic/linear_0"]["w"]
  np.testing.assert_allclose(
    np.std(critic, axis=(1, 2)), 0.87962 / np.sqrt(101), rtol=0.03
  )


@pytest.mark.parametrize("maker", _MAKERS)
def test_the_first_actions_are_near_zero(maker):
  policy = maker(_O, _A).policy
  params = policy.init(_KEY)
  weights = np.abs(params["policy/output"]["w"])
  assert weights.max() <= 3e-3
  assert weights.max() > 2.9e-3
  observation, _ = _inputs(50)
  assert np.abs(policy.apply(params, observation)).max() < 0.1


@pytest.mark.parametrize("maker", _MAKERS)
def test_a_policys_last_layer_may_start_as_hidden_ones_do(maker):
  small, fan_in = (
    maker(
      _O, 50, networks.NetworkConfig((200,), policy_final_init=name)
    ).policy.init(_KEY)
    for name in ("small", "fan_in")
  )
  np.testing.assert_allclose(
    np.std(fan_in["policy/output"]["w"]), 0.87962 / np.sqrt(200), rtol=0.03
  )
  assert np.abs(small["policy/output"]["w"]).max() <= 3e-3
  # And nothing else is another.
  np.testing.assert_array_equal(
    fan_in["policy/linear_0"]["w"], small["policy/linear_0"]["w"]
  )
  assert not np.any(fan_in["policy/output"]["b"])


@pytest.mark.parametrize("activation", ["relu", "tanh"])
@pytest.mark.parametrize("layer_norm", [False, True])
def test_a_discriminator_equals_a_float64_forward_pass(layer_norm, activation):
  discriminator = networks.make_discriminator(
    _O, _K, (8, 6), activation=activation, layer_norm=layer_norm
  )
  params = _randomised(discriminator.init(_KEY))
  assert ("discriminator/layer_norm_1" in params) == layer_norm
  inputs, _ = _inputs(2, 4)
  np.testing.assert_allclose(
    discriminator.apply(params, inputs),
    _forward(params, "discriminator", inputs, activation),
    rtol=1e-5,
    atol=1e-5,
  )


@pytest.mark.parametrize(
  ("make", "message"),
  [
    (lambda: networks.make_sac_networks(0, _A), "observation_size=0 is not a"),
    (lambda: networks.make_td3_networks(_O, True), "action_size=True is not a"),
    (lambda: networks.make_crossq_networks(_O, 0), "action_size=0 is not a"),
    (
      lambda: networks.make_xqc_networks(_O, _A, num_atoms=1),
      "num_atoms=1 is not a count",
    ),
    (lambda: networks.make_discriminator(0, _K), "input_size=0 is not a count"),
    (lambda: networks.make_discriminator(_O, 0), "parameter_size=0 is not a"),
    (
      lambda: networks.make_discriminator(_O, _K, activation="rleu"),
      "'rleu' is unknown.*'relu'",
    ),
    (
      lambda: _make(policy_hidden_layer_sizes=(64, 0)),
      "policy_hidden_layer_sizes must be at least 1, got 0",
    ),
    (
      lambda: _make(critic_hidden_layer_sizes=64),
      "critic_hidden_layer_sizes is .*; give",
    ),
    (lambda: _make(activation="xyz"), "give one of elu, "),
    (
      lambda: _make(policy_final_init="fan-in"),
      "policy_final_init='fan-in' is unknown; did you mean 'fan_in'",
    ),
    (
      lambda: _make(residual=True),
      r"policy_hidden_layer_sizes=\(8, 6\) are no sizes of",
    ),
    (
      lambda: _make(critic_residual=True, critic_hidden_layer_sizes=()),
      r"critic_hidden_layer_sizes=\(\) are no sizes of residual blocks",
    ),
    (
      lambda: _make(
        critic_residual=True, layer_norm=True, critic_hidden_layer_sizes=(4,)
      ),
      "layer_norm has no effect on the critic's residual blocks",
    ),
  ],
)
def test_settings_that_make_no_network_are_refused(make, message):
  with pytest.raises(ValueError, match=message):
    make()
