"""What the tests of DIAYN share: a base learner that only looks, and data."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from qdrl_haiku import learners, skills
from qdrl_haiku.learners import statistics
from tests.learners import common

NUM_SKILLS, DESCRIPTOR_SIZE = 4, 2
_O, _B = common.OBSERVATION_SIZE, common.BATCH_SIZE
PRIOR = skills.categorical(NUM_SKILLS)
HYPERPARAMS = {
  name: np.float32(value)
  for name, value in {
    "gain": 3.0,
    "discriminator_learning_rate": 0.05,
    "task_reward_weight": 0.0,
  }.items()
}


def config(**changes):
  """Smooth and small."""
  defaults = {
    "discriminator_hidden_layer_sizes": (5,),
    "activation": "tanh",
    "normalize_observations": True,
  }
  return learners.DIAYNConfig(**(defaults | changes))


class Seen(NamedTuple):
  """The state of a learner that keeps what it was given."""

  weight: Any
  transitions: Any = None
  hyperparams: Any = None
  key: Any = None
  observation: Any = None


def spy(batches_per_update=1):
  """A base learner that learns nothing and acts as it sees."""
  return learners.Learner(
    init=lambda key: Seen(jax.random.normal(key)),
    update=lambda state, hyperparams, transitions, key: (
      Seen(state.weight, transitions, hyperparams, key),
      {"spied": jnp.float32(7.0)},
    ),
    act=lambda state, hyperparams, observation, key: (
      hyperparams["gain"] * observation
    ),
    act_greedy=lambda state, observation: observation,
    observe=lambda state, observation: state._replace(observation=observation),
    hyperparams={"gain": 1.0},
    batches_per_update=batches_per_update,
    genotype=lambda state: ("stored", state.weight),
    from_genotype=lambda genotype: Seen(genotype[1] + 1.0),
  )


@functools.cache
def spied(prior=PRIOR, batches_per_update=1, **changes):
  """DIAYN over a spy, one of each kind so as to compile once."""
  return learners.diayn(
    spy(batches_per_update), _O, prior, DESCRIPTOR_SIZE, config(**changes)
  )


def agent(learner, seed=0):
  """An agent with statistics, and networks far from how they begin."""
  rng = np.random.default_rng(seed)

  def randomised(path, x):
    is_network = "_params" in jax.tree_util.keystr(path)
    noise = jnp.asarray(rng.normal(size=x.shape), x.dtype)
    return noise if is_network else x

  state = jax.tree_util.tree_map_with_path(
    randomised, common.fresh(learner, seed)
  )
  return statistics.observe(state, common.observations(50, seed=500 + seed))


def batches(num_batches=1, prior=PRIOR, seed=0):
  """Transitions [N, B] with skills and descriptors."""
  transitions = common.transitions(num_batches, _B, seed=seed)
  keys = jax.random.split(jax.random.key(seed), (num_batches, _B))
  skill = jax.vmap(jax.vmap(prior.sample))(keys)
  rng = np.random.default_rng(600 + seed)
  descriptor, next_descriptor = jnp.asarray(
    rng.normal(size=(2, num_batches, _B, DESCRIPTOR_SIZE)), jnp.float32
  )
  return transitions._replace(
    observation=jnp.concatenate([transitions.observation, skill], axis=-1),
    next_observation=jnp.concatenate(
      [transitions.next_observation, skill], axis=-1
    ),
    extras={"descriptor": descriptor, "next_descriptor": next_descriptor},
  )


def update(learner, state, transitions, **changes):
  """One update of a DIAYN over a spy."""
  return jax.jit(learner.update)(
    state, HYPERPARAMS | changes, transitions, jax.random.key(3)
  )
