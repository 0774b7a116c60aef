"""Learners on environments whose values and best actions are known.

Each isolates one thing that a learner can get wrong, as rejax's do. The loop
is put together by hand from an actor, a replay buffer and the learner.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qdrl_haiku import (
  actors,
  environments,
  learners,
  networks,
  replay,
  specs,
)
from tests import configs
from tests.learners import common

_NUM_ENVS, _BATCH_SIZE, _NUM_UPDATES = 4, 64, 1000
# What normalises by batches needs large ones; and without targets nothing else
# averages what single steps leave than small ones.
_LARGE_BATCHES = {"crossq": (1024, 4000), "xqc": (256, 1500)}
_NETWORKS = {
  "policy_hidden_layer_sizes": (32,), "critic_hidden_layer_sizes": (32,),
  "activation": "tanh"}
# An entropy that weighs next to nothing, so that values are plain returns.
_SOFT = _NETWORKS | {"learn_temperature": False, "initial_temperature": 1e-4}
_LEARNERS = {
  "sac": learners.sac(1, 1, configs.make(learners.SACConfig, **_SOFT)),
  "td3": learners.td3(1, 1, configs.make(learners.TD3Config, **_NETWORKS)),
  "crossq": learners.crossq(1, 1, configs.make(learners.CrossQConfig, **_SOFT)),
  "xqc": learners.xqc(1, 1, configs.make(learners.XQCConfig, **_SOFT)),
  "ppo": learners.ppo(1, 1, configs.make(learners.PPOConfig, **_NETWORKS)),
  "discrete_ppo": learners.ppo(
    1, common.DISCRETE, configs.make(learners.PPOConfig, **_NETWORKS)),
  "discrete_sac": learners.sac(
    1, common.DISCRETE, configs.make(learners.SACConfig, **_SOFT)),
  "dqn": learners.dqn(
    1, common.DISCRETE, configs.make(learners.DQNConfig, **_NETWORKS)),
  "pqn": learners.pqn(
    1, common.DISCRETE, configs.make(learners.PQNConfig, **_NETWORKS))}
# Environments, steps, and updates of those that learn from rollouts.
_ROLLOUTS = 32, 16, 150
_SHAPE = networks.NetworkConfig(**_NETWORKS)
_CRITIC = networks.make_sac_networks(1, 1, _SHAPE).critic
_VALUE = networks.make_ppo_networks(1, 1, _SHAPE).critic
_OF_DISCRETE = {
  "dqn": networks.make_dqn_network(1, common.DISCRETE, _SHAPE),
  "pqn": networks.make_dqn_network(
    1, common.DISCRETE,
    networks.ResidualNetworkConfig(**_NETWORKS, layer_norm=True)),
  "discrete_sac": networks.make_sac_networks(1, common.DISCRETE, _SHAPE).critic}
_BATCH_NORM_CRITICS = {
  "crossq": networks.make_crossq_networks(1, 1, _SHAPE).critic,
  "xqc": networks.make_xqc_networks(1, 1, _SHAPE, num_atoms=51).critic}
_EACH = pytest.mark.parametrize("name", common.SAC_FIRST)


class _Probe:
  """Episodes whose numbers may be traced: one compilation for all of them.

  The observation starts from U(-spread, spread) and grows by `advance` a step.
  A step pays `reward`, and the last of `num_steps` pays `at_end` on top;
  `price` is that of the squared distance between the action and half the
  observation.
  """

  observation_size = 1
  action_size = 1

  def __init__(self, num_steps, advance, reward, at_end, spread, price):
    self._num_steps = num_steps
    self._advance = advance
    self._reward = reward
    self._at_end = at_end
    self._spread = spread
    self._price = price

  def reset(self, key):
    start = self._spread * jax.random.uniform(key, (1,), minval=-1.0)
    zero = jnp.zeros(())
    return environments.State(zero, start, zero, zero)

  def step(self, state, action):
    steps = state.pipeline_state + 1
    done = (steps >= self._num_steps).astype(jnp.float32)
    distance = jnp.square(action[0] - 0.5 * state.obs[0])
    return state.replace(
      pipeline_state=steps, obs=state.obs + self._advance,
      reward=self._reward + self._at_end * done - self._price * distance,
      done=done)


class _DiscreteProbe(_Probe):
  """The actions are -0.5, 0 and 0.5."""

  action_spec = specs.Discrete(3)

  def step(self, state, action):
    return super().step(state, _level(action)[None])


def _level(action):
  return 0.5 * action - 0.5


def _environment(name, probe):
  is_discrete = name in _OF_DISCRETE or name.startswith("discrete")
  kind = _DiscreteProbe if is_discrete else _Probe
  return environments.Environment(kind(**probe), episode_length=3)


@functools.cache
def _training(name):
  """(key, hyperparameters, numbers of a probe) -> an agent that has learned."""
  if _LEARNERS[name].learns_from == "rollout":
    return _training_by_rollouts(name)
  learner, buffer = _LEARNERS[name], replay.uniform(5000)
  batch_size, num_updates = _LARGE_BATCHES.get(
    name, (_BATCH_SIZE, _NUM_UPDATES))
  batches = (learner.batches_per_update, batch_size)

  def train(key, hyperparams, probe):
    env = _environment(name, probe)
    init_key, reset_key, run_key = jax.random.split(key, 3)
    state = learner.init(init_key)
    env_state = env.reset(jax.random.split(reset_key, _NUM_ENVS))
    act = functools.partial(actors.step, env, learner)
    example = jax.tree.map(
      lambda x: x[0], act(state, hyperparams, env_state, run_key)[1])

    def iteration(carry, key):
      state, env_state, stored = carry
      act_key, sample_key, update_key = jax.random.split(key, 3)
      env_state, rows = act(state, hyperparams, env_state, act_key)
      stored = buffer.add(stored, rows)
      sample = buffer.sample(stored, sample_key, batches)
      state, _ = learner.update(state, hyperparams, sample, update_key)
      return (state, env_state, stored), None

    return jax.lax.scan(
      iteration, (state, env_state, buffer.init(example)),
      jax.random.split(run_key, num_updates))[0][0]

  return jax.jit(train)


def _training_by_rollouts(name):
  """As `_training`."""
  learner, (num_envs, num_steps, num_updates) = _LEARNERS[name], _ROLLOUTS

  def train(key, hyperparams, probe):
    env = _environment(name, probe)
    init_key, reset_key, run_key = jax.random.split(key, 3)

    def iteration(carry, key):
      state, env_state = carry
      act_key, update_key = jax.random.split(key)
      act = functools.partial(actors.step, env, learner, state, hyperparams)
      env_state, rollout = jax.lax.scan(
        act, env_state, jax.random.split(act_key, num_steps))
      state, _ = learner.update(state, hyperparams, rollout, update_key)
      return (state, env_state), None

    env_state = env.reset(jax.random.split(reset_key, num_envs))
    return jax.lax.scan(
      iteration, (learner.init(init_key), env_state),
      jax.random.split(run_key, num_updates))[0][0]

  return jax.jit(train)


def _train(name, discount=0.8, policy_learns=True, **probe):
  """An agent that learned after every step of its environments."""
  hyperparams = _LEARNERS[name].hyperparams | {
    "policy_learning_rate": 0.01, "critic_learning_rate": 0.01,
    "discount": discount}
  if "tau" in hyperparams:
    hyperparams["tau"] = 0.1
  if name in ("ppo", "discrete_ppo", *_LARGE_BATCHES):
    hyperparams["policy_learning_rate"] = 0.001
  if name == "crossq":
    hyperparams["critic_learning_rate"] = 0.0005
  if not policy_learns and name not in ("dqn", "pqn"):
    hyperparams["policy_learning_rate"] = 0.0
  if "exploration_noise" in hyperparams:
    hyperparams["exploration_noise"] = 0.4
  numbers = dict.fromkeys(
    ("num_steps", "advance", "reward", "at_end", "spread", "price"), 0.0
  ) | probe
  return _training(name)(jax.random.key(0), hyperparams, numbers)


def _values(name, state, observation, action, discount=0.8):
  """The values of both critics, [..., 2]."""
  inputs = jnp.array(observation)[:, None], jnp.array(action)[:, None]
  if name in _OF_DISCRETE:
    params = getattr(state, "critic_params", state.policy_params)
    values = _OF_DISCRETE[name].apply(params, inputs[0])
    values = values.reshape(len(values), 3, -1)[np.arange(len(values)), action]
    return np.broadcast_to(values, (len(values), 2))
  if name.endswith("ppo"):
    value = _VALUE.apply(state.critic_params, inputs[0])
    return np.stack([value, value], axis=-1)
  if name not in _BATCH_NORM_CRITICS:
    return np.asarray(_CRITIC.apply(state.critic_params, *inputs))
  critic, params = _BATCH_NORM_CRITICS[name], state.critic_params
  outputs, _ = critic.apply(
    params, state.critic_state, *inputs, is_training=False)
  if name == "crossq":
    return np.asarray(outputs[..., 0])
  largest = state.reward_statistics.largest + np.exp(state.log_temperature)
  atoms = np.linspace(-1, 1, 51) * 1.25 * largest / (1 - discount)
  return np.asarray(jax.nn.softmax(outputs) @ atoms)


def _greedy(name, state, observation):
  observation = jnp.array(observation)[:, None]
  action = _LEARNERS[name].act_greedy(state, observation, ()).action
  return action[:, 0] if action.ndim == 2 else action


@_EACH
def test_a_later_reward_is_discounted_once_per_step(name):
  state = _train(name, discount=0.6, num_steps=2.0, at_end=1.0, advance=1.0)
  action = _greedy(name, state, [0.0, 1.0])
  np.testing.assert_allclose(
    _values(name, state, [0.0, 1.0], action, discount=0.6),
    [[0.6, 0.6], [1.0, 1.0]], atol=0.02)


@_EACH
def test_the_best_action_of_each_observation_is_found(name):
  state = _train(name, num_steps=1.0, spread=1.0, price=1.0)
  observation = [-0.9, -0.4, 0.0, 0.4, 0.9]
  action, best = _greedy(name, state, observation), 0.5 * np.array(observation)
  expected = np.zeros((5, 1))
  if action.dtype == jnp.int32:
    level = np.round(2 * best) / 2
    expected = -np.square(level - best)[:, None]
    np.testing.assert_array_equal(_level(action), level)
  else:
    np.testing.assert_allclose(action, best, atol=0.1)
  np.testing.assert_allclose(
    _values(name, state, observation, action), expected + [0, 0], atol=0.05)


@_EACH
def test_a_truncation_does_not_end_the_value(name):
  """Episodes are cut after 3 steps; their rewards alone would give 2.44.

  All actions are worth the same, so a policy would drift to some that haven't
  been tried, of which the critic knows nothing.
  """
  state = _train(
    name, policy_learns=False, num_steps=float("inf"), reward=1.0)
  action = _greedy(name, state, [0.0])
  np.testing.assert_allclose(_values(name, state, [0.0], action), 5.0, atol=0.1)
