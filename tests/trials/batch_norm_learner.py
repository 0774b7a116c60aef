"""A user's learner whose critic is normalised by its batches.

No target networks, and both halves of a target's batch through the critic
together, as in CrossQ (Bhatt et al., arXiv 1902.05605), section 3.
"""

from typing import Any, NamedTuple

import haiku as hk
import jax
import jax.numpy as jnp

from qdrl_haiku import learners, networks, policies, types

_WIDTH = 32


class Genotype(NamedTuple):
  params: Any  # The policy's and the critic's.
  critic_state: Any


class State(NamedTuple):
  genotype: Genotype
  optimizer_state: Any


def make_learner(observation_size, action_size):
  policy, _ = networks.make_td3_networks(
    observation_size, action_size, networks.NetworkConfig((_WIDTH,)))

  def value(inputs, is_training):
    hidden = jax.nn.relu(hk.Linear(_WIDTH)(inputs))
    hidden = hk.BatchNorm(True, True, 0.9)(hidden, is_training)
    return hk.Linear(1)(hidden)[..., 0]

  critic = networks.stateful_network(value, observation_size + action_size)
  adam = learners.Optimizer()

  def init(key):
    policy_key, critic_key = jax.random.split(key)
    critic_params, critic_state = critic.init(critic_key)
    params = {"policy": policy.init(policy_key), "critic": critic_params}
    return from_genotype(Genotype(params, critic_state))

  def from_genotype(genotype):
    return State(genotype, adam.init(genotype.params))

  def greedy(params, observation):
    parameters = policy.apply(params["policy"], observation)
    return policies.deterministic_tanh(parameters).mode()

  def act_greedy(state, observation, memory):
    return types.Acted(greedy(state.genotype.params, observation))

  def act(state, hyperparams, observation, memory, key):
    action = act_greedy(state, observation, memory).action
    noise = jax.random.normal(key, action.shape)
    action = jnp.clip(action + hyperparams["noise"] * noise, -1.0, 1.0)
    return types.Acted(action)

  def update(state, hyperparams, transitions, key):
    del key
    t = jax.tree.map(lambda x: x[0], transitions)
    old, critic_state = state.genotype

    def loss(params):
      now = jnp.concatenate([t.observation, t.action], axis=-1)
      action = greedy(old, t.next_observation)
      later = jnp.concatenate([t.next_observation, action], axis=-1)
      q, moved = critic.apply(
        params["critic"], critic_state, jnp.concatenate([now, later]),
        is_training=True)
      q_tm1, q_t = jnp.split(q, 2)
      target = t.reward + hyperparams["discount"] * t.discount * q_t
      error = q_tm1 - jax.lax.stop_gradient(target)
      action = greedy(params, t.observation)
      q, _ = critic.apply(
        old["critic"], critic_state,
        jnp.concatenate([t.observation, action], axis=-1), is_training=False)
      return jnp.mean(error**2) - jnp.mean(q), (jnp.mean(error**2), moved)

    gradient, (critic_loss, moved) = jax.grad(loss, has_aux=True)(old)
    params, optimizer_state = adam.update(
      gradient, state.optimizer_state, old, hyperparams["learning_rate"])
    after = State(Genotype(params, moved), optimizer_state)
    return after, {"critic_loss": critic_loss}

  return learners.Learner(
    init=init, update=update, act=act, act_greedy=act_greedy,
    observe=lambda state, observation: state,
    hyperparams={"discount": 0.95, "learning_rate": 1e-3, "noise": 0.2},
    batches_per_update=1, genotype=lambda state: state.genotype,
    from_genotype=from_genotype)
