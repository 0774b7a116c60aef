"""A user's emitter that learns from all transitions of its offspring.

One agent of the setup's learner is trained on them; its policy is offered to
the repertoire among variations of elites.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from qdrl_haiku import map_elites, replay, types

_UPDATES = 8


class State(NamedTuple):
  agent: Any
  buffer: Any
  num_updates: Any


def make_emitter(setup):
  learner, config, plan = setup.learner, setup.config, setup.map_elites
  buffer = replay.uniform(config.capacity)
  size = plan.variation_batch_size
  variations = map_elites.genetic_emitter(plan.variation_fn, size - 1)
  hyperparams = jax.tree.map(jnp.float32, learner.hyperparams)

  def init(key, repertoire):
    del repertoire
    observation = jnp.zeros(setup.env.observation_size)
    action = jnp.zeros(setup.env.action_size)
    zero = jnp.zeros(())
    example = (observation, action, zero, zero, observation)
    agent = learner.init(key)
    return State(agent, buffer.init(example), jnp.zeros((), jnp.int32))

  def ask(state, repertoire, key):
    def update(agent, key):
      sample_key, update_key = jax.random.split(key)
      shape = (learner.batches_per_update, config.batch_size)
      batch = types.Transition(
        *buffer.sample(state.buffer, sample_key, shape), {})
      return learner.update(agent, hyperparams, batch, update_key)[0], ()

    keys = jax.random.split(key, _UPDATES + 1)
    can_learn = buffer.can_sample(state.buffer, config.batch_size)
    agent = jax.lax.cond(
      can_learn, lambda agent: jax.lax.scan(update, agent, keys[1:])[0],
      lambda agent: agent, state.agent)
    varied, _ = variations.ask((), repertoire, keys[0])
    own = map_elites.Elite(learner.genotype(agent), hyperparams)
    elites = jax.tree.map(
      lambda x, y: jnp.concatenate([x[None], y]), own, varied)
    num_updates = state.num_updates + _UPDATES * can_learn
    return elites, state._replace(agent=agent, num_updates=num_updates)

  def tell(state, repertoire, evaluated, key):
    del repertoire, key
    transitions = evaluated.extra["transitions"]
    lengths = evaluated.extra["lengths"]
    # Steps after an episode's end count as its first step once more.
    steps = jnp.arange(transitions.reward.shape[2])
    steps = jnp.where(steps < lengths[..., None], steps, 0)
    take = jax.vmap(jax.vmap(lambda x, i: x[i]))
    rows = jax.tree.map(
      lambda x: take(x, steps).reshape(-1, *x.shape[3:]), tuple(transitions[:5])
    )
    return state._replace(buffer=buffer.add(state.buffer, rows))

  return map_elites.Emitter(
    init, ask, tell, size, needs=("transitions",),
    metrics=lambda state: {"num_updates": state.num_updates})
