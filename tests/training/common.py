"""A tiny environment and learner, and a controller that does as it is told."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from qdrl_haiku import controllers, environments, learners, training, types
from tests.controllers import common as controllers_common

TARGET = 0.5


class Drift:
  """A point that drifts by its action; the reward is nearness to `TARGET`.

  What is near is the action, not the point, so the return of a learner whose
  action is its state says how good that state is.
  """

  observation_size = 2
  action_size = 2

  def _state(self, point, reward):
    return environments.State(point, point, reward, jnp.zeros(()))

  def reset(self, key):
    return self._state(jax.random.normal(key, (2,)), jnp.zeros(()))

  def step(self, state, action):
    reward = -jnp.sum(jnp.square(action - TARGET))
    return self._state(state.obs + 0.1 * action, reward)


class QuadraticState(NamedTuple):
  """A point, what it has seen, and parts that hold nothing."""

  point: types.Array
  critic_steps: types.Array
  observations: types.Array
  nothing: None
  empty: dict[str, Any]


def quadratic_learner(size=2, batches_per_update=1):
  """Moves a point towards `TARGET` at the hyperparameter `learning_rate`.

  A little noise and the replayed rewards come in too, so that keys and buffers
  leave a trace in the state. `parent` is for `scripted`.
  """

  def update(state, hyperparams, transitions, key):
    step = hyperparams["learning_rate"] * (TARGET - state.point)
    noise = jax.random.normal(key, (size,)) + jnp.mean(transitions.reward)
    point = state.point + step + 1e-3 * noise
    batches = transitions.reward.shape[0]
    return state._replace(
      point=point, critic_steps=state.critic_steps + batches
    ), {"loss": jnp.sum(jnp.square(point - TARGET))}

  def act_greedy(state, observation):
    action = jnp.clip(state.point[:2], -1.0, 1.0)
    return jnp.broadcast_to(action, (*observation.shape[:-1], 2))

  def act(state, hyperparams, observation, key):
    del hyperparams
    greedy = act_greedy(state, observation)
    noise = 0.1 * jax.random.normal(key, greedy.shape)
    return jnp.clip(greedy + noise, -1.0, 1.0)

  def observe(state, observation):
    count = observation.size // observation.shape[-1]
    return state._replace(observations=state.observations + count)

  return learners.Learner(
    init=lambda key: QuadraticState(
      point=jax.random.uniform(key, (size,), minval=-1.0, maxval=0.0),
      critic_steps=jnp.zeros((), jnp.int32),
      observations=jnp.zeros((), jnp.int32),
      nothing=None,
      empty={},
    ),
    update=update,
    act=act,
    act_greedy=act_greedy,
    observe=observe,
    hyperparams={"learning_rate": 0.01, "parent": 0.0},
    batches_per_update=batches_per_update,
    genotype=lambda state: state,
    from_genotype=lambda genotype: genotype,
  )


SPACE = {
  "learning_rate": controllers.LogUniform(1e-4, 1e-1),
  "parent": controllers.Fixed(0.0),
}


def scripted():
  """A controller that makes member i a child of `hyperparams["parent"][i]`.

  Otherwise it is PBT that replaces nobody by rank, only non-finite members. A
  child that was asked for gets twice its parent's learning rate.
  """
  pbt = controllers.pbt(controllers.PBTConfig(exploit="none"), SPACE)

  def update(state, key, fitness, hyperparams):
    state, decision = pbt.update(state, key, fitness, hyperparams)
    wanted = hyperparams["parent"].astype(jnp.int32)
    asked = (decision.operator == controllers_common.SURVIVE) & (
      wanted != jnp.arange(wanted.shape[0])
    )
    rate = hyperparams["learning_rate"]
    return state, controllers.Decision(
      parents=jnp.where(asked, wanted, decision.parents),
      hyperparams=decision.hyperparams
      | {
        "learning_rate": jnp.where(
          asked, 2 * rate[wanted], decision.hyperparams["learning_rate"]
        )
      },
      operator=jnp.where(asked, controllers_common.PERTURB, decision.operator),
    )

  return controllers.Controller(pbt.init, update, pbt.operators)


ENV = environments.Environment(Drift(), episode_length=5)


def setup(controller=None, learner=None, **settings):
  """Four members with two environments each, generations of 16 steps."""
  defaults = {
    "population_size": 4,
    "num_envs": 2,
    "perturbation_interval": 16,
    "batch_size": 4,
    "replay_capacity": 48,
    "min_replay_size": 4,
    "num_eval_episodes": 2,
  }
  return training.Setup(
    env=ENV,
    eval_env=ENV,
    learner=learner or quadratic_learner(),
    controller=controller,
    config=training.TrainingConfig(**(defaults | settings)),
  )


def leaves(tree):
  """Arrays by path, typed keys as the integers that they are."""
  return {
    jax.tree_util.keystr(path): jax.device_get(
      jax.random.key_data(x)
      if jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
      else x
    )
    for path, x in jax.tree_util.tree_leaves_with_path(tree)
  }


def assert_bits_equal(actual, expected):
  """Compares two trees bit for bit, NaNs included."""
  actual, expected = leaves(actual), leaves(expected)
  assert actual.keys() == expected.keys()
  for name, x in actual.items():
    y = expected[name]
    assert x.dtype == y.dtype and x.shape == y.shape, name
    assert x.tobytes() == y.tobytes(), name


def differ(first, second):
  """Whether two trees differ anywhere."""
  first, second = leaves(first), leaves(second)
  return any(
    x.tobytes() != second[name].tobytes() for name, x in first.items()
  )


def member(tree, i):
  """One member of a tree with leaves [P, ...]."""
  return jax.tree.map(lambda x: x[i], tree)
