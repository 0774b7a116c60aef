"""Networks that see pixels, which are observed and stored as bytes."""

import haiku as hk
import jax
import jax.numpy as jnp
import pytest

from qdrl_haiku import environments, learners, networks, specs, training

_SIZE = 6


class Light:
  """Shows a light on the left or on the right, where the action has to go.

  An action that doesn't look costs 1, the right one nothing.
  """

  observation_spec = specs.Array((_SIZE, _SIZE, 1), "uint8", 0, 255)
  action_spec = specs.Continuous(1)

  def _state(self, key, reward):
    next_key, key = jax.random.split(key)
    column = jax.random.randint(key, (), 0, _SIZE)
    picture = jnp.zeros((_SIZE, _SIZE, 1), jnp.uint8).at[:, column].set(255)
    side = jnp.where(column < _SIZE // 2, -1.0, 1.0)
    return environments.State((next_key, side), picture, reward, jnp.zeros(()))

  def reset(self, key):
    return self._state(key, jnp.zeros(()))

  def step(self, state, action):
    key, side = state.pipeline_state
    return self._state(key, -jnp.square(action[0] - side))


def _see(pictures, *others):
  features = hk.Conv2D(4, 3, stride=2)(pictures / 255)
  features = hk.Flatten()(jax.nn.relu(features))
  hidden = jnp.concatenate([features, *others], axis=-1)
  return jax.nn.relu(hk.Linear(32)(hidden))


_CONVOLUTIONS = networks.OwnNetworks(
  policy=lambda seen: hk.Linear(2)(_see(seen)),
  critic=lambda seen, action: hk.Linear(1)(_see(seen, action))[..., 0])


@pytest.mark.parametrize("own", [
  pytest.param(None, id="perceptrons", marks=pytest.mark.slow),
  pytest.param(_CONVOLUTIONS, id="convolutions")])
def test_sac_learns_what_pictures_tell(own):
  env = environments.create(Light(), episode_length=10)
  learner = learners.sac(env.observation_spec, env.action_spec, networks=own)
  config = training.TrainingConfig(
    population_size=1, num_envs=8, perturbation_interval=200, batch_size=64,
    min_replay_size=64, num_eval_episodes=8)
  setup = training.Setup(env, env, learner, None, config)
  key = jax.random.key(0)
  state = training.init(setup, key)
  pictures = state.members.replay.storage.observation
  assert pictures.dtype == jnp.uint8 and pictures.shape[2:] == (_SIZE, _SIZE, 1)
  for _ in range(2):
    state, report = training.step(setup, state, key)
  assert report.fitness[0] > -2.0  # Of ten steps.
