"""Networks that see pixels, which are observed and stored as bytes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qdrl_haiku import environments, learners, networks, specs, training
from tests import configs

_SIZE = 6
_COLUMNS = jnp.array([0, 1, 4, 5])  # Which shifts by 1 don't mix up.
_KEY = jax.random.key(0)
_CONV = networks.NetworkConfig((32,), network="conv")


class Light:
  """Shows a light on the left or on the right, where the action has to go.

  An action that doesn't look costs 1, the right one nothing.
  """

  observation_spec = specs.Array((_SIZE, _SIZE, 1), "uint8", 0, 255)
  action_spec = specs.Continuous(1)

  def _state(self, key, reward):
    next_key, key = jax.random.split(key)
    column = jax.random.choice(key, _COLUMNS)
    picture = jnp.zeros((_SIZE, _SIZE, 1), jnp.uint8).at[:, column].set(255)
    side = jnp.where(column < _SIZE // 2, -1.0, 1.0)
    return environments.State((next_key, side), picture, reward, jnp.zeros(()))

  def reset(self, key):
    return self._state(key, jnp.zeros(()))

  def step(self, state, action):
    key, side = state.pipeline_state
    return self._state(key, -jnp.square(action[0] - side))


class Side(Light):
  """Pays where the light is, whatever is done; an episode is one step."""

  def step(self, state, action):
    key, side = state.pipeline_state
    return self._state(key, side).replace(done=jnp.ones(()))


def _trained(env, learner, num_generations, **settings):
  config = training.TrainingConfig(
    population_size=1, num_envs=8, num_eval_episodes=8, **settings)
  setup = training.Setup(env, env, learner, None, config)
  state = training.init(setup, _KEY)
  for _ in range(num_generations):
    state, report = training.step(setup, state, _KEY)
  return state.members, report


@pytest.mark.slow
def test_sac_learns_what_pictures_tell():
  env = environments.create(Light(), episode_length=10)
  learner = learners.sac(
    env.observation_spec, env.action_spec,
    configs.make(learners.SACConfig, network="conv"))
  members, report = _trained(
    env, learner, 2, perturbation_interval=200, batch_size=64,
    min_replay_size=64, random_shift=1)
  pictures = members.replay.frames.ring.storage
  assert pictures.dtype == jnp.uint8 and pictures.shape[2:] == (_SIZE, _SIZE, 1)
  assert report.fitness[0] > -2.0  # Of ten steps.


def test_ppo_learns_what_pictures_are_worth():
  env = environments.create(Side(), episode_length=10)
  learner = learners.ppo(
    env.observation_spec, env.action_spec,
    learners.PPOConfig(network=_CONV))
  members, _ = _trained(
    env, learner, 1, perturbation_interval=6400, rollout_length=16)
  critic = networks.make_ppo_networks(env.observation_spec, 1, _CONV).critic
  params = jax.tree.map(lambda x: x[0], members.learner.critic_params)
  lights = 255 * np.eye(_SIZE, dtype=np.uint8)[_COLUMNS, None, :, None]
  pictures = np.broadcast_to(lights, (4, _SIZE, _SIZE, 1))
  np.testing.assert_allclose(
    critic.apply(params, pictures), [-1, -1, 1, 1], atol=0.1)
