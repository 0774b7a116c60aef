"""Tests of updates and actions against float64 NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from tests.learners import (
  common,
  reference,
  reference_discrete,
  reference_ppo,
  reference_updates,
)


def _noises(name, key, num_batches):
  """The noise at the next observations, and of the policy's own step.

  Of PPO each minibatch's places in the rollout, and the noise of its actions.
  """
  if name == "pqn" or "ppo" in name:
    shuffle_key, noise_key = jax.random.split(key)
    size = common.ROLLOUT[1] if " " in name else np.prod(common.ROLLOUT)
    places = [
      jax.random.permutation(k, size) for k in jax.random.split(shuffle_key, 2)]
    shape = np.prod(common.ROLLOUT) // 3, common.ACTION_SIZE
    return np.reshape(places, (num_batches, -1)), [
      np.asarray(jax.random.normal(k, shape), np.float64)
      for k in jax.random.split(noise_key, num_batches)]
  # Of three sequences of three steps.
  size = (9 if " " in name else common.BATCH_SIZE, common.ACTION_SIZE)
  shapes = (num_batches, *size), size
  keys = [key] if name.startswith("td3") else jax.random.split(key)
  return [
    np.asarray(jax.random.normal(k, shape), np.float64)
    for k, shape in zip(keys, shapes, strict=False)]


@pytest.mark.parametrize("name", common.NAMES + common.RECURRENT)
def test_updates_are_those_of_the_float64_reference(name):
  learner = common.learner(name)
  state = common.agent(learner)
  expected = reference.float64(state)
  changes = {
    "discount": 0.9, "reward_scaling": 2.0, "target_entropy": -1.5,
    "target_noise_scale": 0.4, "weight_decay": 0.1, "gae_lambda": 0.8,
    "clip_epsilon": 0.1, "entropy_cost": 0.05, "max_gradient_norm": 0.3,
    "q_lambda": 0.8}
  known = changes.keys() & learner.hyperparams.keys()
  hyperparams = common.hyperparams(learner, **{x: changes[x] for x in known})
  update = reference_updates.soft_update
  if name.startswith("td3"):
    update = reference_updates.td3_update
  elif name in ("dqn", "pqn", "discrete_sac"):
    update = getattr(reference_discrete, f"{name}_update")
  elif "ppo" in name:
    update = reference_ppo.ppo_update
    # Or the actions, which it hasn't chosen, become too unlikely.
    hyperparams["policy_learning_rate"] = np.float32(3e-4)
  for i in range(2):
    key, batches = jax.random.key(i), common.batches(learner, seed=i)
    noises = _noises(name, key, learner.batches_per_update)
    if name.startswith("td3"):
      clip = hyperparams["target_noise_clip"]
      assert np.any(0.4 * np.abs(noises[0]) > clip)
    state, metrics = learner.update(state, hyperparams, batches, key)
    expected, expected_metrics = update(expected, hyperparams, batches, noises)
    common.assert_close(metrics, expected_metrics, rtol=1e-4, atol=1e-5)
  common.assert_close(state, expected, rtol=1e-4, atol=1e-5)


def test_ppos_divergence_is_finite_where_its_loss_is():
  learner = common.learner("ppo")
  # Actions that it hasn't chosen become e^89 times as likely.
  _, metrics = learner.update(
    common.agent(learner, seed=2),
    common.hyperparams(learner, policy_learning_rate=0.1),
    common.batches(learner, seed=2), jax.random.key(0))
  assert np.isfinite(metrics["policy_loss"])
  assert 1 < metrics["policy_divergence"] < np.exp(20)


@pytest.mark.parametrize("name", ["sac", "td3"])
def test_acting_is_normal_noise_around_what_the_policy_means(name):
  learner = common.learner(name)
  state, size = common.agent(learner), common.ACTION_SIZE
  observation = common.observations(1)[0]
  numbers = reference.float64(state)
  outputs = reference.mlp(
    numbers.policy_params,
    reference.normalize(numbers.observation_statistics, observation))
  greedy = learner.act_greedy(state, observation, ()).action
  np.testing.assert_allclose(greedy, np.tanh(outputs[:size]), rtol=1e-5)
  changes = {} if name == "sac" else {"exploration_noise": 0.01}
  actions = learner.act(
    state, common.hyperparams(learner, **changes),
    jnp.tile(observation, (2000, 1)), (), jax.random.key(0)).action
  if name == "td3":
    noise = (actions - greedy) / 0.01
  else:
    scale = np.log1p(np.exp(outputs[size:])) + 1e-3
    noise = (np.arctanh(np.asarray(actions, np.float64)) - outputs[:size])
    noise /= scale
  noise = np.asarray(noise)
  for i in range(size):
    assert stats.kstest(noise[:, i], "norm").pvalue > 0.01
  # A tanh that is rounded to 1 has no finite inverse.
  finite = noise[np.all(np.isfinite(noise), axis=1)]
  assert len(finite) > 1900
  assert abs(np.corrcoef(finite.T)[0, 1]) < 0.1


@pytest.mark.parametrize(("discount", "seen", "horizon"), [
  (1.0, 1.0, 1000), (0.9, 1.0, 10), (0.9, 0.9**4, 1 / (1 - 0.9**5))])
def test_xqcs_atoms_hold_all_returns_up_to_a_horizon(discount, seen, horizon):
  """Rewards of five steps are followed by a discount's fifth power."""
  learner = common.learner("xqc")
  # Of next to no entropy.
  state = common.agent(learner)._replace(log_temperature=jnp.float32(-40.0))
  batches = common.batches(learner)
  batches = batches._replace(
    discount=seen * (batches.discount > 0).astype(jnp.float32))
  _, metrics = learner.update(
    state, common.hyperparams(learner, discount=discount), batches,
    jax.random.key(0))
  largest = np.abs(batches.reward).max(axis=1).mean()
  assert metrics["largest_value"] == pytest.approx(
    1.25 * largest * horizon, rel=1e-3)


@pytest.mark.parametrize("loc", [0.5, 10.0])
def test_ppo_learns_from_the_number_before_the_tanh(loc):
  """Of every number above 8.66 the action alone would tell 8.66."""
  raw_scale = 0.5
  learner = common.learner(
    "ppo", num_epochs=1, num_minibatches=1, normalize_observations=False)
  # A policy of one distribution, and a critic that says 0.
  state = jax.tree.map(
    lambda x: jnp.zeros_like(x) if x.dtype == jnp.float32 else x,
    common.fresh(learner))
  last = max(state.policy_params)
  assert state.policy_params[last]["b"].shape == (2 * common.ACTION_SIZE,)
  state.policy_params[last]["b"] = jnp.repeat(
    jnp.array([loc, raw_scale]), common.ACTION_SIZE)
  scale = np.log1p(np.exp(raw_scale)) + 1e-3
  rng = np.random.default_rng(0)
  size = *common.ROLLOUT, common.ACTION_SIZE
  number = np.float32(loc + scale * rng.normal(size=size))
  rollout = common.transitions(*common.ROLLOUT)
  rollout = rollout._replace(
    action=jnp.tanh(number), discount=jnp.zeros(common.ROLLOUT),
    extras={
      "pre_tanh": number, "truncation": jnp.zeros(common.ROLLOUT),
      "log_prob": stats.norm.logpdf(number, loc, scale).sum(axis=-1)})
  after, _ = learner.update(
    state, common.hyperparams(
      learner, entropy_cost=0.0, max_gradient_norm=1e9),
    rollout, jax.random.key(0))
  # Adam's first moment after one step is a tenth of the gradient.
  found = 10 * np.float64(after.policy_optimizer_state.mu[last]["b"])
  # Of the surrogate where the ratio is 1: -mean(advantage grad log p(x)).
  reward = np.float64(rollout.reward)
  advantage = (reward - reward.mean()) / reward.std()
  noise = (np.float64(number) - loc) / scale
  slopes = np.concatenate([
    noise / scale, (noise**2 - 1) / scale / (1 + np.exp(-raw_scale))], axis=-1)
  expected = -np.mean(advantage[..., None] * slopes, axis=(0, 1))
  np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(("count", "share"), [(0, 1.0), (5, 0.6), (50, 0.2)])
@pytest.mark.parametrize("name", ["dqn", "pqn"])
def test_agents_explore_less_and_less(name, count, share):
  learner = common.learner(name)
  state, observation = common.agent(learner), common.observations(5000)
  adam = state.policy_optimizer_state._replace(count=jnp.int32(count))
  found = learner.act(
    state._replace(policy_optimizer_state=adam),
    common.hyperparams(learner, epsilon=0.2, epsilon_updates=10.0),
    observation, (), jax.random.key(0)).action
  greedy = learner.act_greedy(state, observation, ()).action
  # One in three of those that are drawn is the greedy one, too.
  assert np.mean(found != greedy) == pytest.approx(share * 2 / 3, abs=0.03)
  drawn = np.bincount((found - greedy)[found != greedy] % 3, minlength=3)
  assert drawn[1] == pytest.approx(drawn[2], rel=0.15)
