"""A learner of one's own with a memory: a cue, a choice ten steps later."""

import haiku as hk
import jax
import jax.numpy as jnp
import pytest

from qdrl_haiku import environments, learners, policies, training, types

_ADAM, _KEY, _FIRST = learners.Optimizer(), jax.random.key(0), jnp.zeros(16)
_begin = lambda params: (params, _ADAM.init(params))  # noqa: E731

class Cue:
  observation_size, action_size = 2, 1

  def reset(self, key):
    cue, no = jax.random.rademacher(key, (), jnp.float32), jnp.zeros(())
    return environments.State((cue, 0), jnp.array([cue, 0]), no, no)
  def step(self, state, action):
    cue, t = state.pipeline_state
    reward = (t == 10) * cue * jnp.sign(action[0])
    return environments.State(
      (cue, t + 1), jnp.array([0, t == 9], jnp.float32), reward, t == 10)

@hk.transform
def network(observation, memory):
  memory += jnp.tanh(hk.Linear(16)(observation))
  return policies.normal_tanh(hk.Linear(2)(jnp.tanh(memory))), memory

def act(state, hyperparams, observation, memory, key):
  policy, after = network.apply(state[0], None, observation, memory)
  action = policy.mode() if key is None else policy.sample(seed=key)
  return types.Acted(action, after, {"memory": memory})

def update(state, hyperparams, rollout, key):
  def loss_fn(params):
    def step(memory, now):
      policy, memory = network.apply(params, None, now.observation, memory)
      memory = jnp.where(now.discount[..., None] == 0, _FIRST, memory)
      return memory, now.reward * policy.log_prob(now.action)
    gains = jax.lax.scan(step, rollout.extras["memory"][0], rollout)[1]
    return -jnp.mean(gains), ((), params)
  return _ADAM.descend(loss_fn, *state, hyperparams["learning_rate"])[2:4], {}

REINFORCE = learners.Learner(
  init=lambda key: _begin(network.init(key, _FIRST[:2], _FIRST)), act=act,
  update=update, act_greedy=lambda state, *seen: act(state, {}, *seen, None),
  observe=lambda state, _: state, hyperparams={"learning_rate": 0.01},
  batches_per_update=1, genotype=lambda state: state[0], from_genotype=_begin,
  memory=lambda: _FIRST, learns_from="rollout", stores=("memory",))

def fitness(learner):
  env = environments.Environment(Cue(), episode_length=50)
  setup = training.Setup(env, env, learner, None, training.TrainingConfig(
    population_size=1, num_envs=32, rollout_length=44, num_eval_episodes=64,
    perturbation_interval=281600))
  return training.step(setup, training.init(setup, _KEY), _KEY)[1].fitness[0]

@pytest.mark.slow
def test_only_an_agent_that_remembers_makes_the_choice():
  assert fitness(REINFORCE) > 0.95
  assert abs(fitness(learners.ppo(2, 1))) < 0.5
