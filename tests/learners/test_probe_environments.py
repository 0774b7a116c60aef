"""Learners on environments whose values and best actions are known.

Each isolates one thing that a learner can get wrong, as rejax's do. The loop
is put together by hand from an actor, a replay buffer and the learner.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qdrl_haiku import actors, environments, learners, networks, replay

_NUM_ENVS, _BATCH_SIZE = 4, 32
_SIZES = {
  "policy_hidden_layer_sizes": (16,), "critic_hidden_layer_sizes": (16,)
}
# An entropy that weighs next to nothing, so that values are plain returns.
_SAC = learners.sac(
  1, 1, learners.SACConfig(
    learn_temperature=False, initial_temperature=1e-4, **_SIZES
  )
)
_TD3 = learners.td3(1, 1, learners.TD3Config(**_SIZES))
_EACH = pytest.mark.parametrize("learner", [_SAC, _TD3], ids=["sac", "td3"])
_CRITIC = networks.make_sac_networks(1, 1, **_SIZES).critic


class _Probe:
  """An environment that is its observation."""

  observation_size = 1
  action_size = 1

  def reset(self, key):
    zero = jnp.zeros(())
    return environments.State((), self.first(key), zero, zero)

  def first(self, key):
    return jnp.zeros(1)

  def step(self, state, action):
    obs, reward, done = self.move(state.obs, action[0])
    return state.replace(
      obs=obs, reward=jnp.float32(reward), done=jnp.float32(done)
    )


class _OneStep(_Probe):
  """Reward 2, and it is over: the value is 2."""

  def move(self, obs, action):
    return obs, 2.0, 1.0


class _TwoSteps(_Probe):
  """Reward 0, then 1: the first value is the discount, the second 1."""

  def move(self, obs, action):
    return obs + 1, obs[0], obs[0]


class _Target(_Probe):
  """One step, whose best action is half the observation, of value 0."""

  def first(self, key):
    return jax.random.uniform(key, (1,), minval=-1.0)

  def move(self, obs, action):
    return obs, -jnp.square(action - 0.5 * obs[0]), 1.0


class _Endless(_Probe):
  """Reward 1 forever: the value is 1 / (1 - discount)."""

  def move(self, obs, action):
    return obs, 1.0, 0.0


class _Lever(_Probe):
  """An action above 0 leads to a reward, but only one step later."""

  def move(self, obs, action):
    return jnp.where(obs == 0, jnp.sign(action), obs), obs[0], obs[0] != 0


def _train(learner, env, num_updates, **changes):
  """Returns an agent that learned after every step of its environments."""
  env = environments.Environment(env, episode_length=3)
  hyperparams = learner.hyperparams | {
    "policy_learning_rate": 0.01, "critic_learning_rate": 0.01, "tau": 0.1,
    "discount": 0.8,
  } | changes
  if "exploration_noise" in hyperparams:
    hyperparams["exploration_noise"] = 0.4
  buffer = replay.uniform(2000)
  shape = (learner.batches_per_update, _BATCH_SIZE)

  def iteration(carry, key):
    state, env_state, replay_state = carry
    act_key, sample_key, update_key = jax.random.split(key, 3)
    env_state, transitions = actors.step(
      env, learner, state, hyperparams, env_state, act_key
    )
    replay_state = buffer.add(replay_state, transitions)
    state, _ = learner.update(
      state, hyperparams, buffer.sample(replay_state, sample_key, shape),
      update_key,
    )
    return (state, env_state, replay_state), None

  @jax.jit
  def train(key):
    init_key, reset_key, run_key = jax.random.split(key, 3)
    state = learner.init(init_key)
    env_state = env.reset(jax.random.split(reset_key, _NUM_ENVS))
    example = jax.tree.map(
      lambda x: x[0],
      actors.step(env, learner, state, hyperparams, env_state, key)[1],
    )
    carry = state, env_state, buffer.init(example)
    keys = jax.random.split(run_key, num_updates)
    return jax.lax.scan(iteration, carry, keys)[0][0]

  return train(jax.random.key(0))


def _values(state, observation, action):
  """The values of both critics, [..., 2]."""
  return np.asarray(_CRITIC.apply(
    state.critic_params, jnp.array(observation)[:, None],
    jnp.array(action)[:, None],
  ))


def _greedy(learner, state, observation):
  return learner.act_greedy(state, jnp.array(observation)[:, None])[:, 0]


@_EACH
def test_the_value_of_a_last_step_is_its_reward(learner):
  state = _train(learner, _OneStep(), 200)
  np.testing.assert_allclose(_values(state, [0.0], [0.0]), 2.0, atol=0.05)


@_EACH
def test_a_later_reward_is_discounted_once_per_step(learner):
  state = _train(learner, _TwoSteps(), 400, discount=0.6)
  action = _greedy(learner, state, [0.0, 1.0])
  np.testing.assert_allclose(
    _values(state, [0.0, 1.0], action), [[0.6, 0.6], [1.0, 1.0]], atol=0.05
  )


@_EACH
def test_the_best_action_of_each_observation_is_found(learner):
  state = _train(learner, _Target(), 1000)
  observation = [-0.9, -0.4, 0.0, 0.4, 0.9]
  action = _greedy(learner, state, observation)
  half = 0.5 * np.array(observation)
  np.testing.assert_allclose(action, half, atol=0.1)
  np.testing.assert_allclose(
    _values(state, observation, action), 0.0, atol=0.05
  )
  np.testing.assert_allclose(
    _values(state, observation, half + 0.4), -0.16, atol=0.05
  )


@_EACH
def test_a_truncation_does_not_end_the_value(learner):
  """Episodes are cut after 3 steps; their rewards alone would give 2.44."""
  state = _train(learner, _Endless(), 500)
  action = _greedy(learner, state, [0.0])
  np.testing.assert_allclose(_values(state, [0.0], action), 5.0, atol=0.1)


@_EACH
def test_an_action_is_credited_for_a_later_reward(learner):
  state = _train(learner, _Lever(), 600)
  action = _greedy(learner, state, [0.0])
  assert action[0] > 0.1
  np.testing.assert_allclose(_values(state, [0.0], action), 0.8, atol=0.1)
