"""Tests of SAC."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from qdrl_haiku import learners
from tests import jaxprs
from tests.learners import common, reference

_CASE = common.case("sac")
_LEARNER = _CASE.learner
# What a change of each hyperparameter reaches at once, in one update, where
# Adam's first step forgets the size of a gradient.
_REACHES = {
  "discount": "critic_optimizer_state",
  "tau": "target_critic_params",
  "policy_learning_rate": "policy_params",
  "critic_learning_rate": "critic_params",
  "reward_scaling": "critic_optimizer_state",
  "temperature_learning_rate": "log_temperature",
  "target_entropy": "temperature_optimizer_state",
}
_NETWORKS = ("policy_params", "critic_params", "target_critic_params")


def _fixed(**config):
  return common.case("sac", learn_temperature=False, **config)


def _noises(key):
  """The noise of the two policy evaluations, at the next observations first."""
  shape = (common.BATCH_SIZE, common.ACTION_SIZE)
  return [
    np.asarray(jax.random.normal(k, shape), np.float64)
    for k in jax.random.split(key)
  ]


@pytest.fixture(scope="module")
def variants():
  """States after each of ten updates, one member per changed leaf.

  The last member has no change.
  """
  default = common.hyperparams(_LEARNER)
  changed = [
    default | {name: np.float32(value * 0.8)}
    for name, value in default.items()
  ]
  rows = changed + [default] * (common.POPULATION_SIZE - len(changed))
  hyperparams = jax.tree.map(lambda *x: jnp.stack(x), *rows)
  states = common.repeat(common.agent(_LEARNER), common.POPULATION_SIZE)
  history = []
  for i in range(10):
    states, _ = _CASE.update_all(
      states, hyperparams,
      common.repeat(common.batches(_LEARNER, seed=i), common.POPULATION_SIZE),
      jnp.stack([jax.random.key(i)] * common.POPULATION_SIZE),
    )
    history.append(states)
  return history


def _differs(states, i, field):
  """How far member i is from the last one, which has the defaults."""
  field = getattr(states, field)
  return common.distance(common.member(field, i), common.member(field, -1))


def test_the_hyperparameters_are_those_that_are_documented():
  assert _LEARNER.hyperparams == {
    "discount": 0.995,
    "tau": 0.01,
    "policy_learning_rate": 3e-4,
    "critic_learning_rate": 2e-3,
    "temperature_learning_rate": 1e-3,
    "target_entropy": -1.0,
    "reward_scaling": 1.0,
  }
  assert _LEARNER.batches_per_update == 1


@pytest.mark.parametrize("name", _LEARNER.hyperparams)
def test_every_hyperparameter_is_live(variants, name):
  i = list(_LEARNER.hyperparams).index(name)
  assert _differs(variants[0], i, _REACHES[name]) > 1e-6
  # Soon enough all networks depend on it.
  for field in _NETWORKS:
    assert _differs(variants[-1], i, field) > 1e-6, field


def test_equal_hyperparameters_give_equal_agents(variants):
  for field in _NETWORKS:
    assert _differs(variants[-1], -2, field) == 0


@pytest.mark.parametrize(
  "name, field",
  [
    ("policy_learning_rate", "critic_params"),
    ("critic_learning_rate", "log_temperature"),
    ("temperature_learning_rate", "policy_params"),
    ("tau", "critic_params"),
  ],
)
def test_a_rate_first_reaches_what_it_is_the_rate_of(variants, name, field):
  i = list(_LEARNER.hyperparams).index(name)
  assert _differs(variants[0], i, field) == 0


def test_updates_are_those_of_the_float64_reference():
  state = common.agent(_LEARNER)
  expected = reference.float64(state)
  hyperparams = common.hyperparams(
    _LEARNER, discount=0.9, reward_scaling=2.0, target_entropy=-1.5
  )
  for i in range(2):
    key, batches = jax.random.key(i), common.batches(_LEARNER, seed=i)
    state, metrics = _CASE.update(state, hyperparams, batches, key)
    expected, expected_metrics = reference.sac_update(
      expected, hyperparams, batches, _noises(key)
    )
    common.assert_close(metrics, expected_metrics, rtol=1e-4, atol=1e-5)
  common.assert_close(state, expected, rtol=1e-4, atol=1e-5)


def _constant_critics(state, online, target):
  """Critics that always answer `online` [2], and targets `target` [2]."""
  def constant(params, values):
    params = jax.tree.map(jnp.zeros_like, params)
    params["critic/output"]["b"] = jnp.float32(values)[:, None]
    return params

  return state._replace(
    critic_params=constant(state.critic_params, online),
    target_critic_params=constant(state.target_critic_params, target),
  )


@pytest.mark.parametrize("discount, target", [(0.0, 1.0), (1.0, 2.6)])
def test_a_truncation_is_bootstrapped_and_a_termination_is_not(
  discount, target
):
  # y = 2 * 0.5 + 0.8 * discount * min(2, 3), without entropy.
  state = _constant_critics(common.agent(_LEARNER), [0.0, 1.0], [2.0, 3.0])
  state = state._replace(log_temperature=jnp.float32(-40.0))
  shape = (1, common.BATCH_SIZE)
  batches = common.batches(_LEARNER)._replace(
    reward=jnp.full(shape, 0.5, jnp.float32),
    discount=jnp.full(shape, discount, jnp.float32),
  )
  _, metrics = _CASE.update(
    state,
    common.hyperparams(_LEARNER, discount=0.8, reward_scaling=2.0),
    batches, jax.random.key(0),
  )
  np.testing.assert_allclose(
    metrics["critic_loss"], 0.5 * (target**2 + (target - 1) ** 2), rtol=1e-5
  )


def test_the_policy_is_evaluated_twice():
  """Temperature and policy share an evaluation; the target has the other."""
  size = common.OBSERVATION_SIZE
  shapes = [
    [v.aval.shape for v in e.invars]
    for e in jaxprs.named(
      _LEARNER.update, "dot_general", common.agent(_LEARNER),
      _LEARNER.hyperparams, common.batches(_LEARNER), jax.random.key(0),
    )
  ]
  assert shapes.count([(common.BATCH_SIZE, size), (size, 4)]) == 2


def test_the_temperature_moves_the_entropy_to_its_target():
  state = common.agent(_LEARNER)
  for target_entropy, sign in ((-50.0, -1), (50.0, 1)):
    after, _ = _CASE.update(
      state, common.hyperparams(_LEARNER, target_entropy=target_entropy),
      common.batches(_LEARNER), jax.random.key(0),
    )
    step = float(after.log_temperature - state.log_temperature)
    np.testing.assert_allclose(step, sign * 0.03, rtol=1e-4)


def test_a_fixed_temperature_has_no_hyperparameters():
  assert _LEARNER.hyperparams.keys() - _fixed().learner.hyperparams == {
    "temperature_learning_rate", "target_entropy"
  }


def test_a_fixed_temperature_stays_at_the_initial_one():
  case = _fixed(initial_temperature=0.3)
  state = common.agent(case.learner)
  assert state.temperature_optimizer_state is None
  after, metrics = case.update(
    state, common.hyperparams(case.learner), common.batches(case.learner),
    jax.random.key(0),
  )
  assert after.log_temperature == state.log_temperature
  assert jax.tree.structure(after) == jax.tree.structure(state)
  assert "temperature_loss" not in metrics
  np.testing.assert_allclose(metrics["temperature"], 0.3, rtol=1e-6)
  # The networks learn as before.
  for field in _NETWORKS:
    assert common.distance(getattr(after, field), getattr(state, field)) > 1e-4


def test_exploration_is_the_policy_itself():
  state = common.agent(_LEARNER)
  observation = common.observations(1)[0]
  actions = _CASE.act(
    state, common.hyperparams(_LEARNER), jnp.tile(observation, (2000, 1)),
    jax.random.key(0),
  )
  numbers = reference.float64(state)
  outputs = reference.mlp(
    numbers.policy_params,
    reference.normalize(numbers.observation_statistics, observation),
  )
  x = np.arctanh(np.asarray(actions, np.float64))
  for i in range(common.ACTION_SIZE):
    scale = np.log1p(np.exp(outputs[common.ACTION_SIZE + i])) + 1e-3
    assert stats.kstest((x[:, i] - outputs[i]) / scale, "norm").pvalue > 0.01
  np.testing.assert_allclose(
    _CASE.act_greedy(state, observation),
    np.tanh(outputs[: common.ACTION_SIZE]),
    rtol=1e-5, atol=1e-6,
  )


@pytest.mark.parametrize("value", [0.0, -1.0, float("inf"), float("nan")])
def test_an_initial_temperature_out_of_range_is_refused(value):
  with pytest.raises(ValueError, match=f"initial_temperature .* got {value}"):
    learners.SACConfig(initial_temperature=value)


@pytest.mark.parametrize(
  "sizes, match", [((0, 2), "observation_size"), ((3, 0), "action_size")]
)
def test_a_wrong_size_is_refused_by_its_name(sizes, match):
  with pytest.raises(ValueError, match=match):
    learners.sac(*sizes)
