"""An environment that only steps all of its instances at once."""

import jax
import jax.numpy as jnp

from qdrl_haiku import environments, learners, specs, training


class Flock(environments.BatchedEnvironment):
  """Points on a line that the actions push, all in one array, to come to 0."""

  observation_spec = specs.Array((1,))
  action_spec = specs.Continuous(1)
  episode_length = 8
  abilities = environments.Abilities(
    copies_states=False, resets_instances=False, spreads=False)

  def _state(self, points, steps, shape, reward, ended):
    seen, zero = points.reshape(*shape, 1), jnp.zeros(shape)
    return environments.State((points, steps), seen, reward, zero + ended, {}, {
      "next_observation": seen, "discount": zero + 1,
      "truncation": zero + ended})

  def reset(self, key):
    points = jax.random.uniform(
      key.reshape(-1)[0], (key.size,), minval=-1.0, maxval=1.0)
    steps = jnp.zeros(1, jnp.int32)
    return self._state(points, steps, key.shape, jnp.zeros(key.shape), 0.0)

  def advance(self, state, action):
    points, steps = state.pipeline_state
    points = points + 0.5 * action.reshape(-1)
    reward = -jnp.square(points).reshape(state.done.shape)
    ended = (steps[0] + 1 == self.episode_length).astype(jnp.float32)
    return self._state(points, steps + 1, state.done.shape, reward, ended)

  def step(self, state, action, pool=None):
    after = self.advance(state, action)
    points, steps = after.pipeline_state
    # All begin anew where all have ended, elsewhere than they were.
    ended = steps[0] == self.episode_length
    points = jnp.where(ended, jnp.sin(100 * points), points)
    return after.replace(
      obs=points.reshape(after.obs.shape),
      pipeline_state=(points, jnp.where(ended, 0, steps)))


def test_it_is_trained_in():
  env = Flock()
  learner = learners.td3(env.observation_spec, env.action_spec)
  config = training.TrainingConfig(
    population_size=2, num_envs=8, perturbation_interval=640, batch_size=64,
    min_replay_size=64, num_eval_episodes=8)
  setup = training.Setup(env, Flock(), learner, None, config)
  key = jax.random.key(0)
  state, report = training.step(setup, training.init(setup, key), key)
  assert setup.sizes.batches == (1,)  # One device, whatever there are.
  assert state.members.environment.pipeline_state[0].shape == (16,)
  assert (report.fitness > -1.0).all()  # One that stands still: -2.7.
