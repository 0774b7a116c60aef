"""What the tests of all learners share: small learners, and data for them."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qdrl_haiku import learners, specs, types
from qdrl_haiku.learners import statistics
from tests import configs

OBSERVATION_SIZE, ACTION_SIZE = 3, 2
DISCRETE = specs.Discrete(3)
BATCH_SIZE = 6
ROLLOUT = 4, BATCH_SIZE
NAMES = (
  "sac", "td3", "crossq", "xqc", "ppo", "discrete_ppo", "discrete_sac", "dqn",
  "pqn")
RECURRENT = ("sac gru", "td3 lstm", "ppo gru", "discrete_ppo lstm")
# The others are the slow tier's, where a test compiles for each.
SAC_FIRST = tuple(
  name if name == "sac" else pytest.param(name, marks=pytest.mark.slow)
  for name in NAMES)
WITH_MEMORY = (*SAC_FIRST, *(
  pytest.param(name, marks=pytest.mark.slow) for name in RECURRENT))

_CONFIG = {
  "policy_hidden_layer_sizes": (4,), "critic_hidden_layer_sizes": (5,),
  # Smooth, for finite differences.
  "activation": "tanh"}


def learner(name, **config):
  """One learner by its name, normalising unless `config` says otherwise.

  It's the same one each time, and what it computes is compiled.
  """
  defaults = _CONFIG | {"normalize_observations": True}
  # With all hyperparameters that it may have.
  if name in ("sac", "td3", "discrete_sac", "dqn"):
    defaults["residual"] = True
  if name == "pqn" or "ppo" in name:
    defaults |= {"num_epochs": 2, "num_minibatches": 3}
  elif name.split()[0] in ("td3", "crossq", "xqc"):
    # Of three batches, so that the last is not the second.
    defaults["policy_delay"] = 2 if name.startswith("td3") else 3
  if name == "xqc":
    defaults["num_atoms"] = 7
  name, _, memory = name.partition(" ")
  if memory:
    defaults |= {"memory": f"{memory}:3"}
    if "ppo" not in name:
      defaults |= {"sequence_length": 3, "burn_in": 0}
  return _learner(name, tuple(sorted((defaults | config).items())))


_update_statistics = jax.jit(statistics.update_statistics)


@functools.cache
def _learner(name, config):
  factory, config_class = {
    "sac": (learners.sac, learners.SACConfig),
    "td3": (learners.td3, learners.TD3Config),
    "crossq": (learners.crossq, learners.CrossQConfig),
    "xqc": (learners.xqc, learners.XQCConfig),
    "ppo": (learners.ppo, learners.PPOConfig),
    "dqn": (learners.dqn, learners.DQNConfig),
    "pqn": (learners.pqn, learners.PQNConfig),
  }[name.removeprefix("discrete_")]
  made = configs.make(config_class, **dict(config))
  is_discrete = name.startswith("discrete_") or name in ("dqn", "pqn")
  action = DISCRETE if is_discrete else ACTION_SIZE
  made = factory(OBSERVATION_SIZE, action, made)
  return made._replace(
    update=jax.jit(made.update), act=jax.jit(made.act),
    act_greedy=jax.jit(made.act_greedy))


def observations(*shape, seed=0):
  """Observations [*shape, O] that are worth normalising."""
  rng = np.random.default_rng(seed)
  noise = rng.normal(size=(*shape, OBSERVATION_SIZE))
  return jnp.asarray(noise * [1.0, 3.0, 0.2] + [0.5, -4.0, 1.0], jnp.float32)


def transitions(*shape, seed=0):
  """Transitions [*shape], about a third of them terminations."""
  rng = np.random.default_rng(100 + seed)
  return types.Transition(
    observation=observations(*shape, seed=200 + seed),
    action=jnp.asarray(rng.uniform(-1, 1, (*shape, ACTION_SIZE)), jnp.float32),
    reward=jnp.asarray(rng.normal(size=shape), jnp.float32),
    discount=jnp.asarray(rng.uniform(size=shape) > 0.3, jnp.float32),
    next_observation=observations(*shape, seed=300 + seed), extras={})


def batches(learner, seed=0):
  """Transitions for one update: [N, B], or [N, B, L], or a rollout [T, E]."""
  rng = np.random.default_rng(600 + seed)
  if learner.learns_from == "replay":
    shape = learner.batches_per_update, BATCH_SIZE
    found, key = transitions(*shape, seed=seed), jax.random.key(seed)
    acted = jax.eval_shape(
      learner.act_greedy, jax.eval_shape(learner.init, key), found.observation,
      ())
    if acted.action.dtype == jnp.int32:
      return found._replace(action=DISCRETE.sample(key, *shape))
    return found
  shape = ROLLOUT
  if learner.learns_from == "sequences":
    shape = learner.batches_per_update, 3, learner.sequence_length
  ends = rng.uniform(size=shape) < 0.3
  memory = jax.tree.map(
    lambda x: jnp.float32(rng.uniform(-0.3, 0.3, (*shape, *x.shape))),
    learner.memory())
  rollout = transitions(*shape, seed=seed)
  if learner.learns_from == "sequences":
    return rollout._replace(extras={
      "memory": memory, "truncation": jnp.float32(ends)})
  # In their order, but where an episode has ended.
  goes_on = (~ends & (rollout.discount > 0))[:-1, :, None]
  next_observation = rollout.next_observation.at[:-1].set(
    jnp.where(goes_on, rollout.observation[1:], rollout.next_observation[:-1]))
  key = jax.random.key(seed)
  acted = learner.act(
    agent(learner), hyperparams(learner), rollout.observation, memory, key)
  # As far from the agent's as one update or two lead.
  change = 0.2 * jax.random.normal(key, ROLLOUT)
  return rollout._replace(
    action=acted.action, next_observation=next_observation,
    extras={
      name: x + change if name == "log_prob" else x
      for name, x in acted.extras.items()
    } | {"truncation": rollout.discount * ends})


def fresh(learner, seed=0):
  """An agent as `init` makes it, jitted: one by one its operations are slow."""
  return jax.jit(learner.init)(jax.random.key(seed))


def agent(learner, seed=0):
  """An agent with statistics, and networks far from their initial zeros.

  Its target networks differ from its online ones.
  """
  state = fresh(learner, seed)
  rng = np.random.default_rng(400 + seed)

  def drawn(path, x):
    values = rng.normal(scale=0.6, size=x.shape)
    if jax.tree_util.keystr(path[-1:], simple=True) == "variance":
      values = np.exp(values)
    is_float = x.dtype == jnp.float32  # A count stays.
    return jnp.asarray(values, x.dtype) if is_float else x

  state = state._replace(**{
    name: jax.tree_util.tree_map_with_path(drawn, getattr(state, name))
    for name in state._fields if name.endswith("_params")})
  if state.observation_statistics is None:
    return state
  return state._replace(observation_statistics=_update_statistics(
    state.observation_statistics, observations(50, seed=500 + seed)))


def hyperparams(learner, **changes):
  """The learner's defaults with larger rates, so that steps are visible.

  They are float32 numbers, of which each learner compiles its functions once.
  """
  rates = {
    "tau": 0.1, "policy_learning_rate": 0.01, "critic_learning_rate": 0.02,
    "temperature_learning_rate": 0.03, "epsilon": 0.5,
    "epsilon_updates": 2.0 * learner.batches_per_update,
    "max_gradient_norm": 1.0}
  kept = {k: v for k, v in rates.items() if k in learner.hyperparams}
  values = learner.hyperparams | kept | changes
  return {name: np.float32(value) for name, value in values.items()}


def stack(trees):
  """Trees of one structure as one tree, leaves [len(trees), ...]."""
  return jax.tree.map(lambda *x: jnp.stack(x), *trees)


def member(tree, i):
  """What belongs to member i."""
  return jax.tree.map(lambda x: x[i], tree)


def in_float64(tree):
  """The same numbers in float64, where `jax.enable_x64` allows them."""
  return jax.tree.map(
    lambda x: x.astype(np.float64) if x.dtype == np.float32 else x, tree)


def assert_equal(actual, expected):
  """Compares two trees bit for bit."""
  assert jax.tree.structure(actual) == jax.tree.structure(expected)
  jax.tree.map(np.testing.assert_array_equal, actual, expected)


def assert_close(actual, expected, rtol=1e-5, atol=0.0):
  """Compares two trees within tolerances, naming the leaf that differs."""
  assert jax.tree.structure(actual) == jax.tree.structure(expected)
  jax.tree_util.tree_map_with_path(
    lambda path, x, y: np.testing.assert_allclose(
      x, y, rtol=rtol, atol=atol, err_msg=jax.tree_util.keystr(path)),
    actual, expected)


def distance(tree, other):
  """The largest difference of any two corresponding numbers."""
  differences = jax.tree.map(
    lambda x, y: np.max(np.abs(np.subtract(x, y))), tree, other)
  return max(jax.tree.leaves(differences), default=0.0)
