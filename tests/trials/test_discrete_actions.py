"""A Q-learner of a user's own, whose actions are one of some."""

import jax
import jax.numpy as jnp

from qdrl_haiku import environments, learners, specs, training, types

_PLACES, _KEY = 6, jax.random.key(0)


class Chain:
  """A row of places; only at its right end is reward."""
  observation_spec = specs.Array((), "int32", 0, _PLACES - 1)
  action_spec = specs.Discrete(2)

  def reset(self, key):
    return environments.State((), jnp.int32(0), jnp.zeros(()), jnp.zeros(()))

  def step(self, state, action):
    place = jnp.clip(state.obs + 2 * action - 1, 0, _PLACES - 1)
    return state.replace(obs=place, reward=jnp.float32(place == _PLACES - 1))


def q_learning():
  adam = learners.Optimizer()
  def init(key):
    table = jax.random.uniform(key, (_PLACES, 2))
    return table, adam.init(table)

  def act_greedy(state, place, memory):
    return types.Acted(jnp.argmax(state[0][place], axis=-1), memory)

  def act(state, hyperparams, place, memory, key):
    drawn = specs.Discrete(6).sample(key, *place.shape)  # One in three is done.
    greedy = act_greedy(state, place, memory).action
    return types.Acted(jnp.where(drawn < 2, drawn, greedy), memory)

  def update(state, hyperparams, steps, key):
    seen, action, reward, discount, after, _ = steps
    discount *= hyperparams["discount"]
    target = reward + discount * jnp.max(state[0][after], axis=-1)
    def loss_fn(table):
      return jnp.mean((table[seen, action] - target) ** 2), ((), table)
    step = adam.descend(loss_fn, *state, 1e-2)
    return (step.params, step.optimizer_state), {"loss": step.loss}

  return learners.Learner(
    init=init, act=act, act_greedy=act_greedy, update=update,
    observe=lambda state, _: state, hyperparams={"discount": 0.9},
    batches_per_update=1, genotype=lambda x: x, from_genotype=lambda x: x)


def test_it_walks_to_the_end():
  env = environments.create(Chain(), episode_length=20)
  setup = training.Setup(env, env, q_learning(), None, training.TrainingConfig(
    population_size=2, num_envs=8, perturbation_interval=1600, batch_size=64,
    min_replay_size=256, random_warm_up=True, num_eval_episodes=2))
  state, report = training.step(setup, training.init(setup, _KEY), _KEY)
  assert state.members.replay.storage.action.dtype == jnp.int32
  assert report.fitness.tolist() == [20 - (_PLACES - 2)] * 2
