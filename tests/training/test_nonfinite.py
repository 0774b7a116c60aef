"""Steps with anything non-finite: left out and counted, and nothing else."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qdrl_haiku import environments, learners, training
from qdrl_haiku.training import learning
from tests import configs
from tests.training import common

_KEYS = jax.random.split(jax.random.key(1), 2)
_LEARNER = learners.sac(
  2,
  2,
  configs.make(
    learners.SACConfig,
    policy_hidden_layer_sizes=(4,),
    critic_hidden_layer_sizes=(4,),
    normalize_observations=True,
  ),
)


class _Breaking(common.Drift):
  """Says something that isn't finite in the third step of an episode.

  Only where an episode began at a place whose first number is negative, so that
  some instances never do.
  """

  def __init__(self, field, value=jnp.nan, always=False):
    self._field, self._value, self._always = field, value, always

  def reset(self, key):
    state = super().reset(key)
    hidden = {"point": state.obs, "first": state.obs[0], "count": 0}
    return state.replace(pipeline_state=hidden)

  def step(self, state, action):
    hidden = state.pipeline_state
    count = hidden["count"] + 1
    point = hidden["point"] + 0.1 * action
    reward = -jnp.sum(jnp.square(action - common.TARGET))
    breaks = self._always | ((count >= 3) & (hidden["first"] < 0))
    values = {"obs": point, "reward": reward}
    values[self._field] = jnp.where(breaks, self._value, values[self._field])
    hidden = hidden | {"point": point, "count": count}
    return state.replace(pipeline_state=hidden, **values)


@functools.cache
def _trained(field, value=np.nan, always=False, n_step=1):
  """A population, and what comes of its members in a generation."""
  env = environments.Environment(
    _Breaking(field, value, always), episode_length=5
  )
  setup = common.setup(
    learner=_LEARNER,
    population_size=2,
    num_envs=4,
    perturbation_interval=64,
    replay_capacity=64,
    n_step=n_step,
  )._replace(env=env, eval_env=env)
  population = training.init_population(setup, jax.random.key(0))
  # Compiling takes far longer than running does.
  train = jax.jit(
    functools.partial(training.train_members, setup),
    compiler_options={"xla_backend_optimization_level": 0},
  )
  trained = train(population.members, population.hyperparams, _KEYS)
  return population, *jax.device_get(trained)


def _is_finite(tree):
  return all(
    np.isfinite(x).all()
    for x in common.leaves(tree).values()
    if np.issubdtype(x.dtype, np.floating)
  )


@pytest.mark.parametrize(
  ("field", "name"), [("obs", "observations"), ("reward", "rewards")]
)
@pytest.mark.parametrize("n_step", [1, 3])
def test_steps_that_are_not_finite_are_left_out_and_counted(
  field, name, n_step
):
  _, members, metrics, num_updates = _trained(field, n_step=n_step)
  count = metrics["nonfinite_transitions"]
  assert np.all(count > 0) and np.all(count < 40)
  assert metrics[f"nonfinite_{name}"].tolist() == count.tolist()
  other = {"observations": "rewards", "rewards": "observations"}[name]
  assert not metrics[f"nonfinite_{other}"].any()
  assert _is_finite((members.learner, members.replay, metrics))
  assert np.all(num_updates > 0)
  statistics = members.learner.observation_statistics
  np.testing.assert_array_equal(statistics.num_observations, 64 - count)
  if n_step == 1:
    np.testing.assert_array_equal(members.replay.size, 64 - count)
    for i, size in enumerate(members.replay.size):
      seen = members.replay.storage.observation[i, :size].astype(np.float64)
      np.testing.assert_allclose(statistics.mean[i], seen.mean(0), atol=1e-5)


def test_one_huge_observation_leaves_statistics_and_metrics_finite():
  _, members, metrics, _ = _trained("obs", 1e30)
  statistics = members.learner.observation_statistics
  assert np.all(statistics.num_observations < 64)
  assert np.all(statistics.std < 10) and np.all(np.abs(statistics.mean) < 10)
  assert np.all(metrics["observation_std"] < 10)
  # It is finite, and so learned from.
  assert not metrics["nonfinite_transitions"].any()
  assert np.all(members.replay.size == 64)


def _that_may_act_with_nan():
  """A learner that acts so where its hyperparameter `parent` is above 0."""
  learner = common.quadratic_learner()

  def act(state, hyperparams, observation, key):
    action = learner.act(state, hyperparams, observation, key)
    return jnp.where(hyperparams["parent"] > 0, jnp.nan, action)

  return learner._replace(act=act)


def test_a_member_whose_steps_never_count_does_not_keep_others_from_learning():
  setup = common.setup(
    learner=_that_may_act_with_nan(), population_size=2, random_warm_up=False
  )
  population = training.init_population(setup, jax.random.key(0))
  train = jax.jit(lambda *args: training.train_members(setup, *args))

  def trained(parent):
    hyperparams = population.hyperparams | {"parent": jnp.float32(parent)}
    return jax.device_get(train(population.members, hyperparams, _KEYS))

  sound, *_ = trained([0, 0])
  members, metrics, num_updates = trained([0, 1])
  common.assert_bits_equal(common.member(members, 0), common.member(sound, 0))
  # It stays as it is, but for what it has seen.
  assert num_updates.tolist()[1] == 0 and members.replay.size.tolist()[1] == 0
  before = common.member(population.members.learner, 1)
  np.testing.assert_array_equal(members.learner.point[1], before.point)
  assert metrics["nonfinite_transitions"].tolist() == [0, 16]
  # The agent's own fault, not the environment's.
  assert metrics["nonfinite_observations"].tolist() == [0, 0]


def test_each_member_acts_at_random_until_its_own_replay_has_its_minimum():
  setup = common.setup(random_warm_up=True, min_replay_size=4)
  states = jax.vmap(setup.learner.init)(_KEYS)
  inputs = (setup.learner.hyperparams, jnp.zeros((2, 3, 2)), _KEYS)
  act = jax.vmap(learning._warming_up(setup).act, (0, None, 0, 0))
  actions = act((states, jnp.array([4, 3])), *inputs)
  own_keys = jax.vmap(jax.random.split)(_KEYS)[:, 0]
  expected = jax.vmap(setup.learner.act, (0, None, 0, 0))(
    states, *inputs[:2], own_keys
  )
  np.testing.assert_array_equal(actions[0], expected[0])
  assert np.all(actions[1] != expected[1])


def test_where_no_step_is_ever_finite_nobody_learns_and_training_ends():
  population, members, metrics, num_updates = _trained(
    "reward", always=True
  )
  assert not num_updates.any() and not members.replay.size.any()
  assert metrics["nonfinite_transitions"].tolist() == [64, 64]
  for name in ("policy_params", "critic_params"):
    common.assert_bits_equal(
      getattr(members.learner, name),
      getattr(population.members.learner, name),
    )


def test_an_agent_outlives_environments_that_end_a_generation_broken():
  env = environments.Environment(_Breaking("obs"), episode_length=5)
  config = dataclasses.replace(
    common.setup().config, num_envs=8, perturbation_interval=24
  )
  setup = common.setup()._replace(env=env, config=config)

  @jax.jit
  def generation(population):
    return training.train_generation(setup, population, jax.random.key(2))

  # All have taken their third step.
  population = training.init_population(setup, jax.random.key(0))
  population, report = generation(population)
  seen = population.members.environment.info["next_observation"]
  assert np.isnan(seen).any()
  assert np.all(report.finite)
  assert np.any(report.metrics["nonfinite_transitions"] > 0)
