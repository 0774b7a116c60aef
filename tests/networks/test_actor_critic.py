"""Tests of the networks."""

import re

import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qdrl_haiku import networks, specs
from tests import marks
from tests.learners import reference

_KEY = jax.random.key(0)
_O, _A, _K = 5, 3, 4
_MAKERS = {
  "sac": (networks.make_sac_networks, 2 * _A),
  "td3": (networks.make_td3_networks, _A)}
_SMALL = {
  "policy_hidden_layer_sizes": (8, 6), "critic_hidden_layer_sizes": (7, 9)}
# The others are those of exported policies, see `tests/artifacts`.
_ACTIVATIONS = {
  # The usual approximation by a tanh.
  "gelu": lambda x: (
    x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))),
  "relu": lambda x: np.maximum(x, 0),
  "tanh": np.tanh}


def _make(maker=networks.make_sac_networks, **settings):
  config = networks.ResidualNetworkConfig(**(_SMALL | settings))
  return maker(_O, _A, config)


def _randomised(network):
  """Parameters with every leaf drawn anew, biases and offsets too."""
  rng = np.random.default_rng(0)
  return jax.tree.map(
    lambda x: jnp.asarray(rng.normal(size=x.shape), x.dtype),
    jax.eval_shape(network.init, _KEY))


def _inputs(*leading):
  rng = np.random.default_rng(1)
  observation = rng.normal(size=(*leading, _O)).astype(np.float32)
  action = rng.uniform(-1, 1, size=(*leading, _A)).astype(np.float32)
  return jnp.asarray(observation), jnp.asarray(action)


def _forward(params, inputs, activation="relu"):
  """The outputs of a network in float64."""
  return reference.mlp(
    reference.float64(params), np.asarray(inputs, np.float64),
    _ACTIVATIONS[activation])


@pytest.mark.parametrize(("maker", "settings"), [
  ("sac", {"activation": "gelu"}), ("td3", {}), ("sac", {"layer_norm": True}),
  ("td3",
   {
     "residual": True, "policy_hidden_layer_sizes": (6,),
     "critic_hidden_layer_sizes": (8, 8)})], ids=str)
def test_networks_are_float64_forward_passes_of_any_axes(maker, settings):
  maker, num_outputs = _MAKERS[maker]
  made = _make(maker, **settings)
  policy, critic = map(_randomised, made)
  layers = {"layer_norm": "layer_norm_1", "residual": "expand_0"}
  for setting, layer in layers.items():
    if setting in settings:
      assert f"policy/{layer}" in policy and f"critic/{layer}" in critic
  activation = settings.get("activation", "relu")
  for leading in ((2, 4), ())[: 1 + (settings == {})]:
    observation, action = _inputs(*leading)
    both = np.concatenate([observation, action], axis=-1)
    twins = [
      _forward(jax.tree.map(lambda x, i=i: x[i], critic), both, activation)
      for i in range(2)]
    for actual, expected, size in (
      (jax.jit(made.policy.apply)(policy, observation),
       _forward(policy, observation, activation), num_outputs),
      (jax.jit(made.critic.apply)(critic, observation, action),
       np.concatenate(twins, axis=-1), 2),
    ):
      assert actual.shape == (*leading, size)
      np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("name", ["sac", "td3", "ppo", "crossq"])
def test_policies_do_not_see_what_is_privileged_and_critics_do(name):
  make = getattr(networks, f"make_{name}_networks")
  shapes = {
    "count": ((), "int32"), "grid": ((2, 2), "float32"),
    "pixels": ((3, 2, 1), "uint8"), "privileged_state": ((2,), "float32")}
  policy, critic = make(
    {name: specs.Array(*x) for name, x in shapes.items()}, _A,
    networks.NetworkConfig((8,)))
  _, action = _inputs(4)
  observation = {
    name: jnp.ones((4, *shape), dtype)
    for name, (shape, dtype) in shapes.items()}
  params, act = jax.jit(policy.init)(_KEY), jax.jit(policy.apply)
  seen = []
  for part in shapes:
    seen.append(observation | {part: observation[part] + 1})
    outputs = act(params, observation), act(params, seen[-1])
    assert bool(jnp.allclose(*outputs)) == (part == "privileged_state")
  actions = () if name == "ppo" else (action,)
  params = jax.jit(critic.init)(_KEY)
  if name == "crossq":
    values = [
      critic.apply(*params, x, *actions, is_training=False)[0] for x in seen]
  else:
    values = [critic.apply(params, x, *actions) for x in seen]
  assert len({x.tobytes() for x in map(np.asarray, values)}) == 4


def test_critics_of_discrete_actions_judge_each_of_them():
  config = networks.ResidualNetworkConfig(**_SMALL)
  made = networks.make_sac_networks(_O, specs.Discrete(4), config)
  policy, critic = map(_randomised, made)
  observation, _ = _inputs(2, 3)
  expected = np.stack([
    _forward(jax.tree.map(lambda x, i=i: x[i], critic), observation)
    for i in range(2)], axis=-1)
  found = jax.jit(made.critic.apply)(critic, observation)
  assert found.shape == (2, 3, 4, 2)
  np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-4)
  assert made.policy.apply(policy, observation).shape == (2, 3, 4)
  own = networks.OwnNetworks(critic=lambda x: hk.Linear(4)(x))
  critic = networks.make_sac_networks(
    _O, specs.Discrete(4), config, own).critic
  params = jax.jit(critic.init)(_KEY)
  assert critic.apply(params, observation).shape == (2, 3, 4, 2)


@pytest.mark.parametrize("name", ["td3", "crossq"])
def test_discrete_actions_are_refused(name):
  message = "actions are one of 3.*take learner=ppo, dqn, pqn or sac, or your"
  with pytest.raises(ValueError, match=message) as error:
    getattr(networks, f"make_{name}_networks")(_O, specs.Discrete(3))
  assert "\n" not in str(error.value)


@pytest.mark.parametrize(("setting", "layer"), [
  ("layer_norm", "layer_norm_0"), ("residual", "project_0")])
def test_critics_alone_may_have_what_policies_have_not(setting, layer):
  settings = {
    "policy_hidden_layer_sizes": (8, 8), "critic_hidden_layer_sizes": (8, 8)}
  for both, critics in ((False, True), (True, False), (True, None)):
    made = _make(**settings, **{setting: both, f"critic_{setting}": critics})
    policy, critic = (jax.eval_shape(x.init, _KEY) for x in made)
    assert (f"policy/{layer}" in policy) == both
    expected = both if critics is None else critics
    assert (f"critic/{layer}" in critic) == expected


def test_hidden_weights_start_with_variance_one_over_fan_in():
  made = networks.make_sac_networks(100, 1, networks.NetworkConfig((200,)))
  policy = jax.jit(made.policy.init)(_KEY)["policy/linear_0"]
  # Cutting the normal at two standard deviations leaves 0.88 of the deviation.
  expected = 0.87962 / np.sqrt(100)
  np.testing.assert_allclose(np.std(policy["w"]), expected, rtol=0.03)
  assert not np.any(policy["b"])
  critic = jax.jit(made.critic.init)(_KEY)["critic/linear_0"]["w"]
  np.testing.assert_allclose(
    np.std(critic, axis=(1, 2)), 0.87962 / np.sqrt(101), rtol=0.03)
  assert np.all(critic[0] != critic[1])


@pytest.mark.parametrize("final", ["small", "fan_in"])
def test_weights_may_start_orthogonal(final):
  """Hidden ones times sqrt(2), the last ones times 1, but for small ones."""
  config = networks.ResidualNetworkConfig(
    (20, 20), initial_weights="orthogonal", policy_final_init=final)
  made = networks.make_sac_networks(6, 2, config)
  policy, critics = (jax.jit(x.init)(_KEY) for x in made)
  critic = jax.tree.map(lambda x: x[0], critics)
  for name, params in ("policy", policy), ("critic", critic):
    for layer, square in ("linear_0", 2), ("linear_1", 2), ("output", 1):
      w = np.array(params[f"{name}/{layer}"]["w"])
      product = w @ w.T if w.shape[0] <= w.shape[1] else w.T @ w
      if final == "small" and (name, layer) == ("policy", "output"):
        assert np.abs(w).max() <= 3e-3
      else:
        np.testing.assert_allclose(
          product, square * np.eye(len(product)), atol=1e-5)
  assert np.all(critics["critic/linear_0"]["w"][1] != critic[
    "critic/linear_0"]["w"])


@marks.ON_CPU
def test_orthogonal_weights_of_a_population_are_factorised_one_by_one():
  """In batches LAPACK's calls wait for each other, at times for ever."""
  config = networks.ResidualNetworkConfig(
    (20, 20), initial_weights="orthogonal")
  critic = networks.make_sac_networks(6, 2, config).critic
  text = jax.jit(jax.vmap(critic.init)).lower(
    jax.random.split(_KEY, 3)).as_text()
  batch_dims = re.findall(r'@lapack_.*num_batch_dims = "(\d)"', text)
  assert len(batch_dims) >= 3 and set(batch_dims) == {"0"}


def test_first_actions_are_near_zero_or_the_last_layer_starts_as_others_do():
  observation = _inputs(50)[0]
  outputs = {}
  for init in (None, "small", "fan_in"):
    config = networks.NetworkConfig((200,), policy_final_init=init)
    policy = networks.make_td3_networks(_O, 50, config).policy
    params = jax.jit(policy.init)(_KEY)
    outputs[init] = params["policy/output"]
    assert not np.any(outputs[init]["b"])
    if init is None:
      assert np.abs(policy.apply(params, observation)).max() < 0.2
  assert 2.9e-3 < np.abs(outputs["small"]["w"]).max() <= 3e-3
  np.testing.assert_array_equal(outputs[None]["w"], outputs["small"]["w"])
  np.testing.assert_allclose(
    np.std(outputs["fan_in"]["w"]), 0.87962 / np.sqrt(200), rtol=0.03)


def test_a_discriminator_is_a_float64_forward_pass():
  discriminator = networks.make_discriminator(
    _O, _K, (8, 6), activation="tanh", layer_norm=True)
  params = _randomised(discriminator)
  assert "discriminator/layer_norm_1" in params
  inputs, _ = _inputs(2, 4)
  np.testing.assert_allclose(
    jax.jit(discriminator.apply)(params, inputs),
    _forward(params, inputs, "tanh"), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("make", "message"), [
  (lambda: networks.make_sac_networks(0, _A), "observation_size=0 is not a"),
  (lambda: networks.make_xqc_networks(_O, _A, num_atoms=1),
   "num_atoms=1 is not a count"),
  (lambda: networks.make_xqc_networks(
     _O, _A, networks.NetworkConfig(policy_final_init="small"), num_atoms=7
   ), "policy_final_init=small has no effect"),
  (lambda: networks.make_crossq_networks(
     _O, _A, networks.ResidualNetworkConfig()
   ), "whose settings have no effect"),
  (lambda: networks.make_discriminator(_O, _K, activation="rleu"),
   "'rleu' is unknown.*'relu'"),
  (lambda: _make(residual=True),
   r"policy_hidden_layer_sizes=\(8, 6\) are no sizes of"),
  (lambda: _make(
     critic_residual=True, layer_norm=True, critic_hidden_layer_sizes=(4,)
   ), "layer_norm has no effect on the critic's residual blocks")])
def test_settings_that_make_no_network_are_refused(make, message):
  with pytest.raises(ValueError, match=message):
    make()
