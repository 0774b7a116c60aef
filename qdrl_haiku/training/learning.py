"""The part of a generation in which members collect and learn."""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from qdrl_haiku import actors, eager, replay, types
from qdrl_haiku.cpu import one_by_one
from qdrl_haiku.training import config as config_lib
from qdrl_haiku.training import n_step
from qdrl_haiku.training import population as population_lib
from qdrl_haiku.training.population import Members
from qdrl_haiku.training.setup import Setup


@eager.compiled("setup")
def train_members(
  setup: Setup,
  members: Members,
  hyperparams: types.Hyperparams,
  keys: types.Key,
) -> tuple[Members, types.Metrics, types.Array]:
  """Collects and learns for `perturbation_interval` steps.

  Args:
    setup: what the population is composed of.
    members: leaves [P, ...].
    hyperparams: leaves [P].
    keys: [P]; consumed.

  Returns:
    The members, whose pool is used up; metrics by name, [P], means over the
    updates; and the number of critic steps of each member, int32 [P].
  """
  iterations = config_lib.iterations(
    setup.config, setup.learner.batches_per_update
  )
  buffer = setup.buffer

  def iteration(members: Members, t: types.Array) -> Any:
    collect_keys, learn_keys = _split(
      jax.vmap(jax.random.fold_in, (0, None))(keys, t)
    )
    # Members have collected equally much, so one of them speaks for all.
    size = jnp.min(members.replay.size)
    env_states, transitions = actors.collect(
      setup.env,
      _warming_up(setup, size),
      members.learner,
      hyperparams,
      members.environment,
      collect_keys,
      iterations.num_env_steps,
      pool or None,
    )
    states = jax.vmap(setup.learner.observe)(
      members.learner, transitions.observation
    )
    rows = jax.tree.map(
      lambda x: x.reshape(x.shape[0], -1, *x.shape[3:]),
      population_lib.stored(setup, transitions),
    )
    buffers = jax.vmap(buffer.add)(members.replay, rows)
    can_learn = jnp.all(
      buffer.can_sample(buffers, setup.config.min_replay_size)
    )
    arguments = (states, buffers, hyperparams, learn_keys)
    learn_now = functools.partial(learn, setup)
    nothing = jax.tree.map(
      lambda x: jnp.zeros(x.shape, x.dtype),
      jax.eval_shape(learn_now, *arguments)[1],
    )
    states, metrics = jax.lax.cond(
      can_learn, learn_now, lambda states, *_: (states, nothing), *arguments
    )
    observed = {
      "observation_mean": jnp.mean(transitions.observation, axis=(1, 2, 3)),
      "observation_square": jnp.mean(
        jnp.square(transitions.observation), axis=(1, 2, 3)
      ),
    }
    members = Members(states, buffers, env_states)
    return members, (metrics, observed, can_learn)

  pool, members = members.pool, members._replace(pool=())
  if setup.config.n_step > 1 and (setup.on_host or setup.config.inherit_replay):
    members = members._replace(
      replay=jax.vmap(lambda b: n_step.cut(setup, b))(members.replay)
    )
  begin = members
  members, (metrics, observed, learned) = jax.lax.scan(
    iteration, members, jnp.arange(iterations.num_iterations)
  )
  learned_iterations = jnp.sum(learned)
  metrics = {
    name: jnp.sum(x, axis=0) / learned_iterations
    for name, x in metrics.items()
  }
  mean = jnp.mean(observed["observation_mean"], axis=0)
  square = jnp.mean(observed["observation_square"], axis=0)
  metrics["observation_mean"] = mean
  metrics["observation_std"] = jnp.sqrt(
    jnp.maximum(square - jnp.square(mean), 0.0)
  )
  if pool:
    # Counted, since it is for the user to say how large a pool is.
    before, after = (
      x.environment.info["episodes"] for x in (begin, members)
    )
    reused = jnp.maximum(after - before - setup.config.pool_size, 0)
    metrics["reused_initial_states"] = jnp.sum(reused, axis=1).astype(float)
  num_updates = jnp.full_like(
    members.replay.size,
    learned_iterations
    * iterations.num_updates
    * setup.learner.batches_per_update,
  )
  return members, metrics, num_updates


def learn(
  setup: Setup,
  states: types.State,
  buffers: replay.ReplayState,
  hyperparams: types.Hyperparams,
  keys: types.Key,
) -> tuple[types.State, types.Metrics]:
  """Learns from replay for one iteration.

  Args:
    setup: what the population is composed of.
    states: the learners', leaves [P, ...].
    buffers: leaves [P, ...], from which can be sampled.
    hyperparams: leaves [P].
    keys: [P]; consumed.

  Returns:
    The new states, and metrics by name, [P], means over the updates.
  """
  batches_per_update = setup.learner.batches_per_update
  num_updates = config_lib.iterations(
    setup.config, batches_per_update
  ).num_updates
  batches = (num_updates, batches_per_update, setup.config.batch_size)
  sample_keys, update_keys = _split(keys)
  # All of them in one gather.
  sampled = jax.vmap(lambda b, k: _sample(setup, b, k, batches))(
    buffers, sample_keys
  )
  update_keys = jax.vmap(jax.random.split, (0, None))(update_keys, num_updates)

  def updates(state: Any, hyperparams: Any, sampled: Any, keys: Any) -> Any:
    transitions = sampled
    if setup.config.n_step > 1:
      transitions = n_step.fold(sampled, hyperparams)

    def update(state: Any, inputs: Any) -> Any:
      transitions, key = inputs
      return setup.learner.update(state, hyperparams, transitions, key)

    return jax.lax.scan(update, state, (transitions, keys))

  # One member after the other, not one update: its networks stay in the cache.
  states, metrics = jax.vmap(one_by_one.on_cpu(updates))(
    states, hyperparams, sampled, update_keys
  )
  return states, jax.tree.map(lambda x: jnp.mean(x, axis=1), metrics)


def _sample(
  setup: Setup,
  buffer: replay.ReplayState,
  key: types.Key,
  shape: tuple[int, ...],
) -> Any:
  """Draws transitions of single steps, or what is to be folded to one each."""
  if setup.config.n_step > 1:
    return n_step.sample(setup, buffer, key, shape)
  return setup.buffer.sample(buffer, key, shape)


def _warming_up(setup: Setup, size: types.Array) -> Any:
  """Returns a learner that acts uniformly until the buffer has its minimum."""
  if not setup.config.random_warm_up:
    return setup.learner

  def act(state: Any, hyperparams: Any, observation: Any, key: Any) -> Any:
    act_key, uniform_key = jax.random.split(key)
    action = setup.learner.act(state, hyperparams, observation, act_key)
    uniform = jax.random.uniform(
      uniform_key, action.shape, action.dtype, -1.0, 1.0
    )
    return jnp.where(size < setup.config.min_replay_size, uniform, action)

  return setup.learner._replace(act=act)


def _split(keys: types.Key) -> tuple[types.Key, types.Key]:
  """Returns two keys [P] for each of keys [P]."""
  first, second = jnp.unstack(jax.vmap(jax.random.split)(keys), axis=1)
  return first, second
