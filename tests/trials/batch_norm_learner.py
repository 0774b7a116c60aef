"""A user's learner whose critic is normalised by its batches.

No target networks, and both halves of a target's batch through the critic
together, as in CrossQ (Bhatt et al., arXiv 1902.05605), section 3.
"""

from typing import Any, NamedTuple

import haiku as hk
import jax
import jax.numpy as jnp
import optax

from qdrl_haiku import learners, networks, policies

_WIDTH = 32


class State(NamedTuple):
  policy_params: Any
  critic_params: Any
  critic_state: Any
  policy_optimizer_state: Any
  critic_optimizer_state: Any


class Genotype(NamedTuple):
  policy_params: Any
  critic_params: Any
  critic_state: Any


def make_learner(observation_size, action_size):
  policy, _ = networks.make_td3_networks(
    observation_size, action_size, networks.NetworkConfig((_WIDTH,))
  )

  def value(inputs, is_training):
    hidden = jax.nn.relu(hk.Linear(_WIDTH)(inputs))
    hidden = hk.BatchNorm(True, True, 0.9)(hidden, is_training)
    return hk.Linear(1)(hidden)[..., 0]

  critic = networks.stateful_network(value, observation_size + action_size)
  adam = optax.scale_by_adam()

  def init(key):
    policy_key, critic_key = jax.random.split(key)
    params, state = critic.init(critic_key)
    return from_genotype(Genotype(policy.init(policy_key), params, state))

  def from_genotype(genotype):
    return State(
      *genotype, adam.init(genotype.policy_params),
      adam.init(genotype.critic_params),
    )  # fmt: skip

  def act_greedy(state, observation):
    parameters = policy.apply(state.policy_params, observation)
    return policies.deterministic_tanh(parameters).mode()

  def act(state, hyperparams, observation, key):
    action = act_greedy(state, observation)
    noise = jax.random.normal(key, action.shape)
    return jnp.clip(action + hyperparams["noise"] * noise, -1.0, 1.0)

  def update(state, hyperparams, transitions, key):
    del key
    t = jax.tree.map(lambda x: x[0], transitions)

    def critic_loss(params):
      both = jnp.concatenate([
        jnp.concatenate([t.observation, t.action], axis=-1),
        jnp.concatenate(
          [t.next_observation, act_greedy(state, t.next_observation)], axis=-1
        ),
      ])
      q, moved = critic.apply(
        params, state.critic_state, both, is_training=True
      )
      q_tm1, q_t = jnp.split(q, 2)
      target = t.reward + hyperparams["discount"] * t.discount * q_t
      error = q_tm1 - jax.lax.stop_gradient(target)
      return jnp.mean(error**2), moved

    (loss, critic_state), gradient = jax.value_and_grad(
      critic_loss, has_aux=True
    )(state.critic_params)
    steps, critic_optimizer_state = adam.update(
      gradient, state.critic_optimizer_state
    )
    critic_params = jax.tree.map(
      lambda p, s: p - hyperparams["learning_rate"] * s,
      state.critic_params, steps,
    )  # fmt: skip

    def policy_loss(params):
      action = jnp.tanh(policy.apply(params, t.observation))
      inputs = jnp.concatenate([t.observation, action], axis=-1)
      q, _ = critic.apply(
        critic_params, critic_state, inputs, is_training=False
      )
      return -jnp.mean(q)

    gradient = jax.grad(policy_loss)(state.policy_params)
    steps, policy_optimizer_state = adam.update(
      gradient, state.policy_optimizer_state
    )
    policy_params = jax.tree.map(
      lambda p, s: p - hyperparams["learning_rate"] * s,
      state.policy_params, steps,
    )  # fmt: skip
    return State(
      policy_params, critic_params, critic_state, policy_optimizer_state,
      critic_optimizer_state,
    ), {"critic_loss": loss}  # fmt: skip

  return learners.Learner(
    init=init,
    update=update,
    act=act,
    act_greedy=act_greedy,
    observe=lambda state, observation: state,
    hyperparams={"discount": 0.95, "learning_rate": 1e-3, "noise": 0.2},
    batches_per_update=1,
    genotype=lambda state: Genotype(*state[:3]),
    from_genotype=from_genotype,
  )
