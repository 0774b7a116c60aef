"""The states in which the episodes of a generation begin, drawn before it.

What resets an environment takes about as long to compile as what steps it, and
an accelerator resets all instances where any of them has ended. So neither what
trains nor what evaluates holds a reset: both are given states, which a program
of its own draws between generations from the members' keys. On the host states
can't be kept, and () stands in their place.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

from qdrl_haiku import environments, prng, types
from qdrl_haiku.training.setup import Setup


class InitialStates(NamedTuple):
  """In which states the episodes of a generation begin.

  Attributes:
    pool: of those in which agents collect, leaves [S, E, I, ...]; () if none
      train.
    evaluation: of those by which agents are evaluated, leaves [S, N, ...].
  """

  pool: types.Tree = ()
  evaluation: types.Tree = ()


def draw_pool(setup: Setup, keys: types.Key) -> types.Tree:
  """Draws the states with which the members' next episodes begin."""

  def draw(setup: Setup, keys: types.Key) -> environments.State:
    # Instances are told apart along the last axis, such as by their skills.
    states = setup.env.reset(jnp.moveaxis(_pool_keys(setup, keys), 2, 0))
    return jax.tree.map(lambda x: jnp.moveaxis(x, 0, 2), states)

  return () if setup.on_host else setup.over_members(draw)(keys)


def draw_for_members(setup: Setup, keys: types.Key) -> InitialStates:
  """Draws all states that a generation of members begins episodes in.

  Where they collect and are evaluated in one environment without skills, one
  reset draws both, since nothing of the program takes longer to compile.
  """
  to_evaluate = evaluation_keys(keys)
  is_plain = isinstance(setup.env, environments.Environment)
  if setup.env is not setup.eval_env or not is_plain:
    return InitialStates(
      draw_pool(setup, keys), draw_evaluation(setup, to_evaluate)
    )

  def draw(
    setup: Setup, keys: types.Key, to_evaluate: types.Key
  ) -> InitialStates:
    of_pool = _pool_keys(setup, keys)
    size, *shape = of_pool.shape
    num_in_pool = math.prod(shape)
    states = setup.env.reset(
      jnp.concatenate(
        [
          of_pool.reshape(size, num_in_pool),
          _split(to_evaluate, (setup.config.num_eval_episodes,)),
        ],
        axis=1,
      )
    )
    return InitialStates(
      pool=jax.tree.map(
        lambda x: x[:, :num_in_pool].reshape(size, *shape, *x.shape[2:]), states
      ),
      evaluation=jax.tree.map(lambda x: x[:, num_in_pool:], states),
    )

  return setup.over_members(draw)(keys, to_evaluate)


def evaluation_keys(keys: types.Key) -> types.Key:
  """Returns the keys of the members' evaluation in one generation."""
  return jax.vmap(jax.random.split)(keys)[:, 1]


def first_states(
  setup: Setup, keys: types.Key, pool: types.Tree = ()
) -> environments.State:
  """Returns the states in which members begin to collect."""

  def draw(setup: Setup, keys: types.Key) -> environments.State:
    return setup.env.reset(_pool_keys(setup, keys)[:, :, 0])

  if pool:
    return jax.tree.map(lambda x: x[:, :, 0], pool)
  return setup.over_members(draw)(keys)


def draw_evaluation(setup: Setup, keys: types.Key) -> types.Tree:
  """Draws the states in which agents are evaluated."""
  return () if setup.on_host else evaluation_states(setup, keys)


def evaluation_states(
  setup: Setup, keys: types.Key, drawn: types.Tree = ()
) -> environments.State:
  """Returns the states in which agents are evaluated."""

  def draw(setup: Setup, keys: types.Key) -> environments.State:
    return setup.eval_env.reset(_split(keys, (setup.config.num_eval_episodes,)))

  return drawn or setup.over_members(draw)(keys)


def _pool_keys(setup: Setup, keys: types.Key) -> types.Key:
  """Returns the keys of a pool's states, [P, E, I], of the members' [P]."""
  keys = jax.vmap(jax.random.fold_in, (0, None))(keys, prng.OfMember.POOL)
  return _split(keys, (setup.config.num_envs, setup.config.pool_size))


def _split(keys: types.Key, shape: tuple[int, ...]) -> types.Key:
  """Returns keys [P, *shape] of keys [P]."""
  return jax.vmap(lambda key: jax.random.split(key, shape))(keys)
