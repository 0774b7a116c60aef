"""Tests of recurrent agents, beside those of all learners."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qdrl_haiku import learners, networks, specs, training
from tests.learners import common, reference
from tests.learners.test_memory import _ENV, _collected, _made

_KEY = jax.random.key(0)
_SHAPE = networks.NetworkConfig((8,), activation="tanh")


@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_a_cell_is_that_of_float64_numpy(kind):
  cell, rng = networks.Cell(kind, 4), np.random.default_rng(0)
  encoder = networks.encoder(specs.Array((3,)), cell, "critic")
  params = {"memory": encoder.init(_KEY)}
  memory = expected = rng.normal(size=(5, cell.memory_size))
  for _ in range(6):
    x = rng.normal(size=(5, 3))
    memory = encoder.apply(params, jnp.float32(x), jnp.float32(memory))
    expected = reference.remember(
      reference.float64(params["memory"]), x, expected)
  np.testing.assert_allclose(memory, expected, atol=1e-5)


def test_unrolling_a_rollout_is_stepping_through_its_episodes():
  """From the stored memory of its first step, episodes' ends within it."""
  learner, cell = _made("sac", "lstm:3"), networks.Cell("lstm", 3)
  state, rollout = _collected(learner)
  steps = jax.tree.map(lambda x: x.swapaxes(0, 1), rollout)
  ends = (steps.discount == 0) | (steps.extras["truncation"] > 0)
  begins = jnp.roll(ends, 1, axis=1).at[:, 0].set(True)
  goes_on = np.asarray(~begins[:, 1:])
  assert ends.any() and goes_on.any()
  for role, memory in steps.extras["memory"].items():
    remember = networks.encoder(specs.Array((2,)), cell, role).apply
    params = getattr(state, f"{role}_params")
    after = remember(params, steps.observation, memory)
    # What was stored is what the step before made, and zeros in the beginning.
    np.testing.assert_allclose(
      after[:, :-1][goes_on], memory[:, 1:][goes_on], atol=1e-6)
    assert not np.any(memory[:, 1:][~goes_on])
  # The network sees what it would see step by step, of the policy here.
  whole = networks.make_sac_networks(2, 1, _SHAPE, cell=cell).policy
  params = state.policy_params
  memory = steps.extras["memory"]["policy"]
  remember = networks.encoder(specs.Array((2,)), cell, "policy").apply
  after = remember(params, steps.observation, memory)
  sequences = networks.Sequences(
    steps.observation, begins, steps.extras["memory"], burn_in=2)
  for seen, memories, given in (
    (steps.observation, after, None),
    (steps.next_observation, remember(params, steps.next_observation, after),
     steps.next_observation[:, 2:])):
    encoded = jax.tree.map(
      lambda x: x[:, 2:].reshape(-1, x.shape[-1]),
      networks.Encoded(seen, memories[..., :3]))
    found = dataclasses.replace(sequences, next_observation=given)
    np.testing.assert_allclose(
      whole.apply(params, found), whole.apply(params, encoded), atol=1e-6)


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
