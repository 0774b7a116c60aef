"""Tests of what all learners do beside updates: act, observe, be stored."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qdrl_haiku.learners import statistics
from tests import jaxprs
from tests.learners import common, reference

_NAMES = (
  "sac",
  "td3",
  pytest.param("crossq", marks=pytest.mark.slow),
  pytest.param("xqc", marks=pytest.mark.slow),
)
_EACH = pytest.mark.parametrize("name", _NAMES)


def _update(case, state, seed=0, **changes):
  """One update on data of its own."""
  return case.update(
    state,
    common.hyperparams(case.learner, **changes),
    common.batches(case.learner, seed),
    jax.random.key(seed),
  )


@_EACH
def test_a_genotype_has_all_but_targets_and_moments_which_are_fresh_again(name):
  case = common.case(name)
  before = _update(case, common.agent(case.learner))[0]
  genotype = case.learner.genotype(before)
  after = case.learner.from_genotype(genotype)
  fresh = common.fresh(case.learner)
  kept = []
  for field, value in after._asdict().items():
    old = expected = getattr(before, field)
    if field.startswith("target_"):
      expected = getattr(before, field.removeprefix("target_"))
      assert common.distance(old, expected)
    elif field.endswith("optimizer_state"):
      expected = getattr(fresh, field)
      assert old.count > 0
    else:
      kept += jax.tree.leaves(old)
    common.assert_equal(value, expected)
  assert len(jax.tree.leaves(genotype)) == len(kept)


@pytest.mark.parametrize("name", [x for x in _NAMES if x != "td3"])
def test_a_fixed_temperature_stays_and_has_no_hyperparameters(name):
  case = common.case(name, learn_temperature=False, initial_temperature=0.3)
  learned = common.case(name).learner.hyperparams.keys()
  assert learned - case.learner.hyperparams.keys() == {
    "temperature_learning_rate", "target_entropy"
  }  # fmt: skip
  state = common.agent(case.learner)
  assert state.temperature_optimizer_state is None
  after, metrics = _update(case, state)
  assert after.log_temperature == state.log_temperature
  assert jax.tree.structure(after) == jax.tree.structure(state)
  assert "temperature_loss" not in metrics
  np.testing.assert_allclose(metrics["temperature"], 0.3, rtol=1e-6)
  for field in ("policy_params", "critic_params"):
    assert common.distance(getattr(after, field), getattr(state, field)) > 1e-4


@_EACH
@pytest.mark.parametrize("shape", [(), (4,), (2, 3)])
def test_actions_are_in_the_box_for_any_leading_axes(name, shape):
  case = common.case(name)
  state = common.agent(case.learner)
  # Large outputs, so that the border is reached.
  state = state._replace(
    policy_params=jax.tree.map(lambda x: 20 * x, state.policy_params)
  )
  hyperparams = common.hyperparams(case.learner)
  if "exploration_noise" in hyperparams:
    hyperparams["exploration_noise"] = np.float32(3.0)
  observation = common.observations(*shape)
  actions = case.act(state, hyperparams, observation, jax.random.key(0))
  greedy = case.act_greedy(state, observation)
  for action in (actions, greedy):
    assert action.shape == (*shape, common.ACTION_SIZE)
    assert np.all(np.abs(action) <= 1)
  assert np.abs(greedy).max() > 0.9


@_EACH
def test_acting_explores_and_greedy_acting_does_not(name):
  case = common.case(name)
  state = common.agent(case.learner)
  hyperparams = common.hyperparams(case.learner)
  observation = jnp.tile(common.observations(1), (5, 1))
  greedy = case.act_greedy(state, observation)
  common.assert_equal(greedy, case.act_greedy(state, observation))
  assert len(np.unique(greedy, axis=0)) == 1
  actions = [
    case.act(state, hyperparams, observation, jax.random.key(i))
    for i in (0, 1, 0)
  ]
  assert np.all(np.any(actions[0] != actions[1], axis=-1))
  common.assert_equal(actions[0], actions[2])
  # Noise differs between environments, and between entries of an action.
  assert len(np.unique(actions[0], axis=0)) == 5
  noise = actions[0] - greedy
  assert not np.allclose(noise[:, 0], noise[:, 1])


@_EACH
def test_only_observe_changes_the_statistics(name):
  case = common.case(name)
  state = common.agent(case.learner)
  updated = _update(case, state)[0]
  common.assert_equal(
    updated.observation_statistics, state.observation_statistics
  )
  new = common.observations(2, 7, seed=9)
  observed = case.learner.observe(state, new)
  common.assert_equal(
    observed.observation_statistics,
    statistics.update(state.observation_statistics, new),
  )
  assert observed.observation_statistics.num_observations == 50 + 14
  common.assert_equal(
    observed._replace(observation_statistics=None),
    state._replace(observation_statistics=None),
  )


@_EACH
def test_without_normalisation_observe_changes_nothing(name):
  learner = common.case(name, normalize_observations=False).learner
  state = common.fresh(learner)
  assert state.observation_statistics is None
  common.assert_equal(learner.observe(state, common.observations(5)), state)


@_EACH
def test_networks_see_normalised_observations(name):
  """As if another learner, without statistics, were given such data."""
  case = common.case(name)
  plain = common.case(name, normalize_observations=False)
  state = common.agent(case.learner)
  batches = common.batches(case.learner)
  running = reference.float64(state.observation_statistics)

  def normal(observation):
    return jnp.asarray(
      reference.normalize(running, np.asarray(observation, np.float64)),
      jnp.float32,
    )

  args = common.hyperparams(case.learner), jax.random.key(3)
  expected, expected_metrics = plain.update(
    state._replace(observation_statistics=None), args[0],
    batches._replace(
      observation=normal(batches.observation),
      next_observation=normal(batches.next_observation),
    ),
    args[1],
  )
  actual, metrics = case.update(state, args[0], batches, args[1])
  common.assert_close(
    actual._replace(observation_statistics=None), expected, 1e-4, 1e-5
  )
  common.assert_close(metrics, expected_metrics, 1e-4, 1e-5)

  observation = common.observations(4)
  for act in (
    lambda c, s, o: c.act_greedy(s, o),
    lambda c, s, o: c.act(s, args[0], o, args[1]),
  ):
    np.testing.assert_allclose(
      act(case, state, observation),
      act(plain, state._replace(observation_statistics=None),
          normal(observation)),
      rtol=1e-4, atol=1e-5,
    )


@pytest.mark.parametrize("name", ["sac", "td3", "crossq", "xqc"])
def test_no_two_draws_are_from_one_key(name):
  learner, key = common.case(name).learner, jax.random.key(0)
  state = jax.eval_shape(learner.init, key)
  hyperparams, batches = common.hyperparams(learner), common.batches(learner)
  assert not jaxprs.reused_keys(learner.init, key)
  given = state, hyperparams, batches, key
  assert not jaxprs.reused_keys(learner.update, *given)
