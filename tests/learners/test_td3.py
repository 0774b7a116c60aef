"""Tests of TD3."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from qdrl_haiku import learners
from tests.learners import common, reference

_CASE = common.case("td3")
_LEARNER = _CASE.learner
# What a change of each hyperparameter reaches at once, in one update.
_REACHES = {
  "discount": "critic_params",
  "tau": "target_critic_params",
  "policy_learning_rate": "policy_params",
  "critic_learning_rate": "critic_params",
  "target_noise_scale": "critic_params",
  "target_noise_clip": "critic_params",
  "reward_scaling": "critic_params",
}
_NETWORKS = (
  "policy_params", "critic_params", "target_policy_params",
  "target_critic_params",
)
_DELAYS = (1, 2, 3)


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


def _updated(policy_delay, num_updates=1):
  """An agent before and after some updates."""
  case = common.case("td3", policy_delay=policy_delay)
  first = state = common.agent(case.learner)
  for i in range(num_updates):
    state, _ = case.update(
      state, common.hyperparams(case.learner),
      common.batches(case.learner, seed=i), jax.random.key(i),
    )
  return first, state


def test_the_hyperparameters_are_those_that_are_documented():
  assert _LEARNER.hyperparams == {
    "discount": 0.995,
    "tau": 0.01,
    "policy_learning_rate": 3e-4,
    "critic_learning_rate": 2e-3,
    "target_noise_scale": 0.2,
    "target_noise_clip": 0.5,
    "exploration_noise": 0.3,
    "reward_scaling": 1.0,
  }


@pytest.mark.parametrize(
  "name", [n for n in _LEARNER.hyperparams if n != "exploration_noise"]
)
def test_every_hyperparameter_of_an_update_is_live(variants, name):
  i = list(_LEARNER.hyperparams).index(name)
  assert _differs(variants[0], i, _REACHES[name]) > 1e-6
  # Soon enough all that the agent has learned depends on it.
  for field in _NETWORKS:
    assert _differs(variants[-1], i, field) > 1e-6, field


def test_exploration_noise_is_no_part_of_an_update(variants):
  i = list(_LEARNER.hyperparams).index("exploration_noise")
  for field in _NETWORKS:
    assert _differs(variants[-1], i, field) == 0


def test_exploration_noise_is_live():
  state, observation = common.agent(_LEARNER), common.observations(4)
  actions = [
    _CASE.act(
      state, common.hyperparams(_LEARNER, exploration_noise=noise),
      observation, jax.random.key(0),
    )
    for noise in (0.1, 0.08, 0.0)
  ]
  assert np.all(np.any(actions[0] != actions[1], axis=-1))
  common.assert_equal(actions[2], _CASE.act_greedy(state, observation))


def test_exploration_noise_is_normal_around_the_greedy_action():
  state = common.agent(_LEARNER)
  observation = jnp.tile(common.observations(1), (2000, 1))
  noise = _CASE.act(
    state, common.hyperparams(_LEARNER, exploration_noise=0.01), observation,
    jax.random.key(0),
  ) - _CASE.act_greedy(state, observation)
  for i in range(common.ACTION_SIZE):
    assert stats.kstest(np.asarray(noise)[:, i] / 0.01, "norm").pvalue > 0.01
  assert abs(np.corrcoef(noise.T)[0, 1]) < 0.1


@pytest.mark.parametrize(
  "name, field",
  [
    ("policy_learning_rate", "critic_params"),
    ("tau", "policy_params"),
    ("tau", "critic_params"),
  ],
)
def test_a_rate_first_reaches_what_it_is_the_rate_of(variants, name, field):
  i = list(_LEARNER.hyperparams).index(name)
  assert _differs(variants[0], i, field) == 0


@pytest.mark.parametrize("policy_delay", _DELAYS)
def test_updates_are_those_of_the_float64_reference(policy_delay):
  case = common.case("td3", policy_delay=policy_delay)
  state = common.agent(case.learner)
  expected = reference.float64(state)
  hyperparams = common.hyperparams(
    case.learner, discount=0.9, reward_scaling=2.0, target_noise_scale=0.4,
  )
  for i in range(2):
    key, batches = jax.random.key(i), common.batches(case.learner, seed=i)
    noise = np.asarray(
      jax.random.normal(key, batches.action.shape), np.float64
    )
    assert np.any(0.4 * np.abs(noise) > hyperparams["target_noise_clip"])
    state, metrics = case.update(state, hyperparams, batches, key)
    expected, expected_metrics = reference.td3_update(
      expected, hyperparams, batches, noise
    )
    common.assert_close(metrics, expected_metrics, rtol=1e-4, atol=1e-5)
  common.assert_close(state, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("policy_delay", _DELAYS)
def test_a_round_is_the_delay_in_critic_steps_and_one_of_the_policy(
  policy_delay
):
  _, state = _updated(policy_delay, num_updates=2)
  assert int(state.critic_optimizer_state.count) == 2 * policy_delay
  assert int(state.policy_optimizer_state.count) == 2


@pytest.mark.parametrize("policy_delay", _DELAYS)
def test_policy_and_targets_move_once_per_round(policy_delay):
  before, after = _updated(policy_delay)
  # Adam's first step has the size of the rate, wherever there is a gradient.
  steps = jax.tree.map(jnp.subtract, after.policy_params, before.policy_params)
  for step in jax.tree.leaves(steps):
    np.testing.assert_allclose(np.abs(step), 0.01, rtol=1e-3)
  for network in ("policy_params", "critic_params"):
    target = "target_" + network
    common.assert_close(
      getattr(after, target),
      reference.moved(
        getattr(before, target), getattr(after, network), 0.1
      ),
      rtol=1e-5, atol=1e-6,
    )


@pytest.mark.parametrize("policy_delay", _DELAYS)
def test_an_update_takes_as_many_batches_as_the_delay(policy_delay):
  learner = common.case("td3", policy_delay=policy_delay).learner
  assert learner.batches_per_update == policy_delay


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
  # y = 2 * 0.5 + 0.8 * discount * min(2, 3).
  case = common.case("td3", policy_delay=1)
  state = _constant_critics(common.agent(case.learner), [0.0, 1.0], [2.0, 3.0])
  shape = (1, common.BATCH_SIZE)
  batches = common.batches(case.learner)._replace(
    reward=jnp.full(shape, 0.5, jnp.float32),
    discount=jnp.full(shape, discount, jnp.float32),
  )
  _, metrics = case.update(
    state,
    common.hyperparams(case.learner, discount=0.8, reward_scaling=2.0),
    batches, jax.random.key(0),
  )
  np.testing.assert_allclose(
    metrics["critic_loss"], 0.5 * (target**2 + (target - 1) ** 2), rtol=1e-5
  )


@pytest.mark.parametrize("value", [0, -1])
def test_a_policy_delay_below_1_is_refused(value):
  with pytest.raises(ValueError, match=f"policy_delay .* got {value}"):
    learners.TD3Config(policy_delay=value)


@pytest.mark.parametrize(
  "sizes, match", [((0, 2), "observation_size"), ((3, 0), "action_size")]
)
def test_a_wrong_size_is_refused_by_its_name(sizes, match):
  with pytest.raises(ValueError, match=match):
    learners.td3(*sizes)
