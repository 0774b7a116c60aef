"""Tests of recurrent agents, beside those of all learners."""

import dataclasses

import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qdrl_haiku import learners, networks, specs, training
from tests.learners import common
from tests.learners.test_memory import _ENV, _collected, _made

_KEY = jax.random.key(0)
_SHAPE = networks.NetworkConfig((8,), activation="tanh")


@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_unrolling_a_rollout_is_stepping_through_its_episodes(kind):
  """From memories where it and episodes within begin; others aren't seen."""
  learner, cell = _made("sac", f"{kind}:3"), networks.Cell(kind, 3)
  state, rollout = _collected(learner)
  steps = jax.tree.map(lambda x: x.swapaxes(0, 1), rollout)
  ends = (steps.discount == 0) | (steps.extras["truncation"] > 0)
  begins = jnp.roll(ends, 1, axis=1).at[:, 0].set(True)
  policy = networks.make_sac_networks(2, 1, _SHAPE, cell=cell).policy
  remember = networks.encoder(specs.Array((2,)), cell, "policy").apply
  params, memory = state.policy_params, steps.extras["memory"]["policy"]
  after = remember(params, steps.observation, memory)
  beyond = remember(params, steps.next_observation, after)
  sequences = networks.Sequences(
    steps.observation, begins,
    {"policy": jnp.where(begins[..., None], memory, 9.0)}, burn_in=2)
  for given, seen, memories in (
    (None, steps.observation, after),
    (steps.next_observation[:, 2:], steps.next_observation, beyond)):
    encoded = jax.tree.map(
      lambda x: x[:, 2:].reshape(-1, x.shape[-1]),
      networks.Encoded(seen, memories[..., :3]))
    unrolled = dataclasses.replace(sequences, next_observation=given)
    np.testing.assert_allclose(
      policy.apply(params, unrolled), policy.apply(params, encoded), atol=1e-6)


@pytest.mark.parametrize("name", ["sac", "td3"])
def test_a_burn_in_is_remembered_and_not_learned_from(name):
  """As if the memory after it had been stored; critics stand still."""
  whole, rest = (
    _made(name, "gru:3", sequence_length=length, burn_in=burn_in)
    for length, burn_in in ((6, 2), (4, 0)))
  state, rollout = _collected(whole)
  n = whole.batches_per_update
  sequences = jax.tree.map(
    lambda x: jnp.stack([x.swapaxes(0, 1)[:, n:n + 6] for n in range(n)]),
    rollout)
  cut = jax.tree.map(lambda x: x[:, :, 2:], sequences)
  hyperparams = whole.hyperparams | {"critic_learning_rate": 0.0}
  expected = rest.update(state, hyperparams, cut, _KEY)
  # Only what was stored where a sequence or an episode begins is looked at.
  ends = (sequences.discount == 0) | (sequences.extras["truncation"] > 0)
  begins = jnp.roll(ends, 1, axis=2).at[:, :, 0].set(True)
  stale = jax.tree.map(
    lambda x: jnp.where(begins[..., None], x, 9.0), sequences.extras["memory"])
  found = whole.update(
    state, hyperparams, sequences._replace(
      extras=sequences.extras | {"memory": stale}), _KEY)
  common.assert_close(found, expected, rtol=1e-3, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "memory", "low", "high"), [
  ("ppo", "gru:16", 0.9, 1.0), ("sac", "gru:16", 0.9, 1.0),
  ("td3", "lstm:16", 0.9, 1.0), ("sac", "window:2", -0.3, 0.3),
  ("sac", "window:4", 0.9, 1.0)])
def test_only_an_agent_that_remembers_a_cue_gets_its_reward(
  name, memory, low, high
):
  config = {"hidden_layer_sizes": (32,)}
  settings = {"num_envs": 8, "batch_size": 64, "min_replay_size": 200}
  if name == "ppo":
    config["num_minibatches"] = 4
    settings = {"num_envs": 32, "rollout_length": 16}
  elif "window" not in memory:
    config |= {"sequence_length": 12, "burn_in": 4}
  learner = _made(name, memory, **config)
  rates = {"policy_learning_rate": 3e-3, "critic_learning_rate": 3e-3}
  learner = learner._replace(
    hyperparams=learner.hyperparams | rates | {"discount": 0.9})
  setup = training.Setup(_ENV, _ENV, learner, None, training.TrainingConfig(
    perturbation_interval=4096 * (5 if name == "ppo" else 1),
    num_eval_episodes=64, **settings))
  state = training.init(setup, _KEY)
  assert low < training.step(setup, state, _KEY)[1].fitness[0] <= high


def test_ppo_cuts_rollouts_over_environments():
  learner = _made("ppo", "gru:3", num_minibatches=2)
  state, rollout = _collected(learner)
  with pytest.raises(ValueError, match="num_envs=3 environments .*batches=2"):
    learner.update(state, learner.hyperparams, rollout, _KEY)


@pytest.mark.parametrize(("config", "message"), [
  ({"sequence_length": 8, "burn_in": 8, "memory": "gru:3"},
   "burn_in=8 leaves nothing of sequence_length=8"),
  ({"sequence_length": 9}, "sequence_length=9 .* no effect: memory=none")])
def test_settings_of_sequences_that_fit_nothing_are_refused(config, message):
  with pytest.raises(ValueError, match=message):
    learners.SACConfig(**config)


def test_a_network_of_ones_own_may_be_recurrent_without_running_state():
  def policy(seen, is_training):
    return hk.Linear(2)(hk.BatchNorm(True, True, 0.9)(seen, is_training))

  config = learners.SACConfig(memory="gru:3")
  own = networks.OwnNetworks(lambda seen: hk.Linear(2)(seen))
  learners.check(learners.sac(2, 1, config, own), 2, 1)
  with pytest.raises(ValueError, match="policy network has running state"):
    learners.sac(2, 1, config, networks.OwnNetworks(policy))
