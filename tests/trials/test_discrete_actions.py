"""DQN of a user's own, on actions that are one of some."""

import haiku as hk
import jax
import jax.numpy as jnp
import optax

from qdrl_haiku import environments, learners, specs, training, types

_PLACES = 6


class Chain:
  """A row of places; only at its end, to the right of the others, is reward."""

  observation_spec = specs.Array((), "int32", 0, _PLACES - 1)
  action_spec = specs.Discrete(2)

  def reset(self, key):
    zero = jnp.zeros(())
    return environments.State((), jnp.int32(0), zero, zero)

  def step(self, state, action):
    place = jnp.clip(state.obs + 2 * action - 1, 0, _PLACES - 1)
    return state.replace(
      obs=place, reward=(place == _PLACES - 1).astype(jnp.float32))


def dqn(num_actions):
  """Mnih et al., "Playing Atari with deep reinforcement learning", 2013."""
  q = hk.without_apply_rng(hk.transform(
    lambda place: hk.Linear(num_actions)(jax.nn.one_hot(place, _PLACES))))
  adam = optax.adam(1e-2)

  def begin(params):
    return params, adam.init(params)

  def act_greedy(state, observation, memory):
    values = q.apply(state[0], observation)
    return types.Acted(jnp.argmax(values, axis=-1).astype(jnp.int32), memory)

  def act(state, hyperparams, observation, memory, key):
    greedy = act_greedy(state, observation, memory).action
    explores, chosen = jax.random.split(key)
    explored = jax.random.bernoulli(
      explores, hyperparams["exploration"], greedy.shape)
    other = jax.random.randint(chosen, greedy.shape, 0, num_actions)
    return types.Acted(jnp.where(explored, other, greedy), memory)

  def update(state, hyperparams, steps, key):
    params, moments = state
    best = jnp.max(q.apply(params, steps.next_observation), axis=-1)
    target = steps.reward + 0.9 * steps.discount * best

    def loss_fn(params):
      values = q.apply(params, steps.observation)
      taken = jnp.take_along_axis(values, steps.action[..., None], -1)[..., 0]
      return jnp.mean(jnp.square(taken - target))

    loss, gradient = jax.value_and_grad(loss_fn)(params)
    change, moments = adam.update(gradient, moments)
    return (optax.apply_updates(params, change), moments), {"loss": loss}

  return learners.Learner(
    init=lambda key: begin(q.init(key, jnp.zeros((), jnp.int32))),
    update=update, act=act, act_greedy=act_greedy,
    observe=lambda state, observation: state,
    hyperparams={"exploration": 0.3}, batches_per_update=1,
    genotype=lambda state: state[0], from_genotype=begin)


def test_it_walks_to_the_end():
  env = environments.create(Chain(), episode_length=20)
  config = training.TrainingConfig(
    population_size=2, num_envs=8, perturbation_interval=800, batch_size=64,
    min_replay_size=256, random_warm_up=True, num_eval_episodes=2)
  setup = training.Setup(env, env, dqn(env.action_spec.size), None, config)
  key = jax.random.key(0)
  state, report = training.step(setup, training.init(setup, key), key)
  assert state.members.replay.storage.action.dtype == jnp.int32
  assert report.fitness.tolist() == [20 - (_PLACES - 2)] * 2
