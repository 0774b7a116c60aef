"""Tests of learners with networks of a user's own."""

import pathlib
import re

import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qdrl_haiku import learners, networks, skills
from qdrl_haiku.programs import artifacts
from tests.learners import common

_O, _A = common.OBSERVATION_SIZE, common.ACTION_SIZE
_MAKERS = {
  "sac": (learners.sac, learners.SACConfig, 2 * _A),
  "td3": (learners.td3, learners.TD3Config, _A),
  "crossq": (learners.crossq, learners.CrossQConfig, 2 * _A),
  "xqc": (learners.xqc, learners.XQCConfig, 2 * _A)}
_SMALL = networks.ResidualNetworkConfig((8,))


def _documented(name):
  """A function of the documents' snippets."""
  document = pathlib.Path(__file__).parents[2] / "launchers" / "README.md"
  snippets = re.findall(r"```python\n(.*?)```", document.read_text(), re.DOTALL)
  names = {}
  exec(next(x for x in snippets if f"def {name}(" in x), names)
  return names[name]


attention = _documented("attention")


def _normalized_policy(num_outputs):
  def policy(observation, is_training):
    hidden = hk.BatchNorm(True, True, 0.9)(observation, is_training)
    return hk.Linear(num_outputs)(hidden)

  return policy


def _normalized_critic(observation, action, is_training):
  inputs = jnp.concatenate([observation, action], axis=-1)
  hidden = hk.BatchNorm(True, True, 0.9)(inputs, is_training)
  return hk.Linear(1)(hidden)[..., 0]


def _made(name, stateful=False):
  """A learner with a network of a user's own, or with two of running state."""
  make, config, num_outputs = _MAKERS[name]
  own = networks.OwnNetworks(attention(num_outputs))
  if stateful:
    own = networks.OwnNetworks(
      _normalized_policy(num_outputs), _normalized_critic)
  return make(_O, _A, config(_SMALL), own)


@pytest.mark.parametrize(
  "name", ["sac", pytest.param("td3", marks=pytest.mark.slow)])
def test_running_state_is_moved_by_training_and_used_by_acting(name):
  learner = _made(name, stateful=True)
  learners.check(learner, _O, _A)
  args = (
    common.stack([common.fresh(learner, seed) for seed in range(2)]),
    common.stack([common.hyperparams(learner)] * 2),
    common.stack([common.batches(learner, i) for i in range(2)]),
    jax.random.split(jax.random.key(1), 2))
  together, _ = jax.jit(jax.vmap(learner.update))(*args)
  after, batches = common.member(together, 1), common.member(args[2], 1)
  averages = after.policy_params.state["batch_norm/~/mean_ema"]["average"]
  np.testing.assert_allclose(
    averages[0], batches.observation[-1].mean(axis=0), rtol=1e-4, atol=1e-5)
  counts = after.critic_params.state["batch_norm/~/mean_ema"]["counter"]
  np.testing.assert_array_equal(counts, [learner.batches_per_update] * 2)
  common.assert_equal(
    after.target_critic_params.state, after.critic_params.state)
  for field in ("policy_params", "critic_params"):
    before = getattr(common.member(args[0], 1), field).params
    assert common.distance(getattr(after, field).params, before) > 1e-4
  # One observation acts alike alone and among others.
  observation = common.observations(4)
  np.testing.assert_allclose(
    learner.act_greedy(after, observation, ()).action[1],
    learner.act_greedy(after, observation[1], ()).action, rtol=1e-5,
    atol=1e-6)


def test_a_pair_of_functions_is_used_as_it_is():
  policy = networks.Network(
    lambda key: jnp.ones((_O, 2 * _A)), lambda weights, x: x @ weights)
  critic = networks.make_sac_networks(_O, _A, _SMALL).critic
  own = networks.OwnNetworks(policy, critic)
  learner = learners.sac(_O, _A, networks=own)
  learners.check(learner, _O, _A)
  state = jax.eval_shape(learner.init, jax.random.key(0))
  assert state.policy_params.shape == (_O, 2 * _A)
  # Of that critic's width; a learner's own has another.
  assert state.critic_params["critic/linear_0"]["w"].shape == (2, _O + _A, 8)
  assert _made("td3").share is None


@pytest.mark.parametrize(("name", "own", "message"), [
  ("sac", {"policy": attention(_A)},
   r"policy .* float32\(6, 2\) of inputs \(6, 3\); it must make .*\(6, 4\)"),
  ("sac", {"critic": lambda observation, action: action},
   r"critic .*inputs \(6, 3\) and \(6, 2\); it must make float32\(6,\)"),
  ("xqc", {"critic": lambda observation, action: hk.Linear(3)(action)},
   r"critic network makes .*2, 3\) .* must make float32\(6, 2, 51\)")])
def test_a_network_of_other_shapes_is_refused(name, own, message):
  make, config, _ = _MAKERS[name]
  with pytest.raises(ValueError, match=message):
    make(_O, _A, config(), networks.OwnNetworks(**own))


def test_a_discriminator_may_be_a_users_own():
  prior = skills.categorical(4)

  def made(network):
    base = learners.sac(_O + 4, _A, learners.SACConfig(_SMALL))
    return learners.diayn(base, _O, prior, 2, network=network)

  learner = made(lambda x: hk.Linear(4)(x))
  state = jax.eval_shape(learner.init, jax.random.key(0))
  params = state.learned["discriminator_params"]
  assert params["linear"]["w"].shape == (2, 4)
  with pytest.raises(ValueError, match="discriminator network makes"):
    made(lambda x: x)
  with pytest.raises(ValueError, match="has running state or differs"):
    made(lambda x, is_training: hk.Linear(4)(x))


def test_a_setting_names_a_policy_network():
  config = learners.SACConfig(policy_network=f"{__name__}:attention")
  states = [
    jax.eval_shape(learner.init, jax.random.key(0))
    for learner in (learners.sac(_O, _A, config), _made("sac"))]
  assert states[0].policy_params == states[1].policy_params
  for setting in (
      {"policy_hidden_layer_sizes": (8,)}, {"policy_final_init": "small"}):
    shaped = networks.ResidualNetworkConfig(**setting)
    with pytest.raises(ValueError, match="no effect: policy_network=a:b is"):
      learners.SACConfig(shaped, policy_network="a:b")


def test_weights_of_a_users_own_critic_keep_their_norm():
  """XQC holds those of its own networks to 1."""
  own = networks.OwnNetworks(
    critic=lambda observation, action: hk.Linear(
      51, w_init=hk.initializers.Constant(2.0))(observation))
  learner = learners.xqc(_O, _A, networks=own)
  state = common.fresh(learner)
  after, _ = learner.update(
    state, learner.hyperparams, common.batches(learner), jax.random.key(1))
  # Adam's first steps are its learning rate, one for each of the two batches.
  for params in (state.critic_params, after.critic_params):
    np.testing.assert_allclose(params["linear"]["w"], 2.0, atol=2.1 * 2e-3)


def test_a_network_of_ones_own_is_exported_if_it_tells_its_layers(tmp_path):
  path = tmp_path / "policy.npz"
  policy = networks.Network(
    init=lambda key: jax.random.normal(key, (_O, 2 * _A)),
    apply=lambda params, x: x @ params,
    layers=lambda params: networks.PolicyLayers(
      {"layer_0/w": params, "layer_0/b": jnp.zeros(2 * _A)}, (_O, 2 * _A),
      "relu"))
  learner = learners.sac(_O, _A, networks=networks.OwnNetworks(policy))
  state = common.fresh(learner)
  artifacts.export.export_policy(path, learner, state)
  observation = common.observations(7)
  np.testing.assert_allclose(
    artifacts.export.load(path)(observation),
    learner.act_greedy(state, observation, ()).action, atol=1e-5)
  with pytest.raises(ValueError, match="a network of your own"):
    artifacts.export.export_policy(path.with_name("x"), _made("sac"), state)
