"""Learners of skills over one that keeps what it is given, and batches."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from qdrl_haiku import learners, skills, types
from tests.learners import common, reference

K, D = 4, 2
_O, _B = common.OBSERVATION_SIZE, common.BATCH_SIZE
CATEGORICAL, CIRCLE = skills.categorical(K), skills.sphere(2)
SHAPE = {
  "hidden_layer_sizes": (5,), "activation": "tanh",
  "normalize_observations": True}


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
      {"spied": jnp.float32(7.0)}),
    act=lambda state, hyperparams, observation, memory, key: types.Acted(
      hyperparams["gain"] * observation),
    act_greedy=lambda state, observation, memory: types.Acted(observation),
    observe=lambda state, observation: state._replace(observation=observation),
    hyperparams={"gain": 1.0}, batches_per_update=batches_per_update,
    genotype=lambda state: ("stored", state.weight),
    from_genotype=lambda genotype: Seen(genotype[1] + 1.0))


@functools.cache
def learner(
  name="diayn", prior=CATEGORICAL, num_batches=1, descriptor_size=D, **changes
):
  """A learner of skills over the spy, the same one each time."""
  made = make(name, _O, prior, num_batches, descriptor_size, **changes)
  return made._replace(update=jax.jit(made.update))


def make(
  name, observation_size, prior=CATEGORICAL, num_batches=1, descriptor_size=D,
  **changes,
):
  """A new learner of skills, which may observe other than a vector."""
  return getattr(learners, name)(
    spy(num_batches), observation_size, prior, descriptor_size,
    getattr(learners, f"{name.upper()}Config")(**SHAPE | changes))


def agent(learner, seed=0):
  """An agent with statistics, and networks far from how they begin."""
  state, rng = common.fresh(learner, seed), np.random.default_rng(seed)
  state = state.with_learned(**{
    name: jax.tree.map(
      lambda x: jnp.asarray(rng.normal(size=x.shape), x.dtype), params)
    for name, params in state.learned.items() if name.endswith("_params")})
  return learner.observe(state, batches(seed=500 + seed).observation)


def batches(num_batches=1, prior=CATEGORICAL, seed=0):
  """Transitions [N, B] with skills, descriptors and returns of skills."""
  transitions = common.transitions(num_batches, _B, seed=seed)
  keys = jax.random.split(jax.random.key(seed), (num_batches, _B))
  skill = jax.jit(jax.vmap(jax.vmap(prior.sample)))(keys)
  rng = np.random.default_rng(600 + seed)
  descriptor, next_descriptor = jnp.asarray(
    rng.normal(size=(2, num_batches, _B, D)), jnp.float32)
  return transitions._replace(
    observation=jnp.concatenate([transitions.observation, skill], axis=-1),
    next_observation=jnp.concatenate(
      [transitions.next_observation, skill], axis=-1),
    extras={
      "descriptor": descriptor, "next_descriptor": next_descriptor,
      "skill_return": jnp.resize(jnp.array([0.0, 9.0]), (num_batches, _B))})


def update(learner, state, transitions, **changes):
  """Learns with the gain 3, unless `changes` say otherwise."""
  hyperparams = learner.hyperparams | {"gain": 3.0} | changes
  return learner.update(
    state, jax.tree.map(np.float32, hyperparams), transitions,
    jax.random.key(3))


def normalized(state, observation):
  """Observations of which all but the skill is normalised, in float64."""
  observation = np.asarray(observation, np.float64)
  numbers = reference.normalize(
    reference.float64(state.observation_statistics), observation[..., :_O])
  return np.concatenate([numbers, observation[..., _O:]], axis=-1)


def network(state, name, inputs):
  """What the network of learned parameters makes of inputs, in float64."""
  return reference.mlp(
    reference.float64(state.learned[name]), np.asarray(inputs, np.float64),
    np.tanh)
