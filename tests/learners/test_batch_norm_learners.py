"""Tests of the learners whose critics are normalised by their batches."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.learners import batch_norm_reference, common, reference

_NAMES = ("crossq", "xqc")
_EACH = pytest.mark.parametrize("name", _NAMES)


def _noises(key, num_batches):
  """The noise of the two policy evaluations, at the next observations first."""
  size = (common.BATCH_SIZE, common.ACTION_SIZE)
  shapes = (num_batches, *size), size
  return [
    np.asarray(jax.random.normal(k, shape), np.float64)
    for k, shape in zip(jax.random.split(key), shapes, strict=True)
  ]


@_EACH
def test_updates_are_those_of_the_float64_reference(name):
  case = common.case(name)
  state = common.agent(case.learner)
  expected = reference.float64(state)
  hyperparams = common.hyperparams(
    case.learner, discount=0.9, reward_scaling=2.0, target_entropy=-1.5
  )
  for i in range(2):
    key, batches = jax.random.key(i), common.batches(case.learner, seed=i)
    state, metrics = case.update(state, hyperparams, batches, key)
    expected, expected_metrics = batch_norm_reference.update(
      expected, hyperparams, batches,
      _noises(key, case.learner.batches_per_update),
    )  # fmt: skip
    common.assert_close(metrics, expected_metrics, rtol=1e-4, atol=1e-5)
  common.assert_close(state, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@_EACH
def test_what_is_not_finite_in_one_member_reaches_no_other(name):
  case, size = common.case(name), 3
  states = common.repeat(common.agent(case.learner), size)
  hyperparams = common.repeat(common.hyperparams(case.learner), size)
  batches = common.repeat(common.batches(case.learner), size)
  keys = jnp.stack([jax.random.key(0)] * size)
  reward = batches.reward.at[1, 1, 2].set(jnp.nan)
  sound, broken = (
    case.update_all(states, hyperparams, x, keys)[0]
    for x in (batches, batches._replace(reward=reward))
  )
  leaves = jax.tree.leaves(common.member(broken, 1).critic_params)
  assert not any(np.isfinite(x).all() for x in leaves)
  for i in (0, 2):
    common.assert_equal(common.member(broken, i), common.member(sound, i))


@_EACH
def test_only_updates_move_the_batch_statistics(name):
  case = common.case(name)
  state = common.agent(case.learner)
  seen = case.learner.observe(state, common.observations(5))
  common.assert_equal(seen.critic_state, state.critic_state)
  after, _ = case.update(
    state, common.hyperparams(case.learner), common.batches(case.learner),
    jax.random.key(0),
  )  # fmt: skip
  counts = [x["count"] for x in after.critic_state.values()]
  np.testing.assert_array_equal(counts, case.learner.batches_per_update)
  for module, values in after.critic_state.items():
    assert np.all(values["variance"] != 1), module
  # Of what comes after normalised inputs the mean may be 0.
  inputs = after.critic_state["critic/batch_norm_inputs"]
  assert np.all(inputs["mean"] != 0)


def _xqc_after(**changes):
  """An agent of XQC, of next to no entropy, after its first update."""
  case = common.case("xqc")
  state = common.agent(case.learner)._replace(
    log_temperature=jnp.float32(-40.0)
  )
  batches = common.batches(case.learner)
  factor = changes.pop("rewards_times", 1.0)
  return case.update(
    state, common.hyperparams(case.learner, **changes),
    batches._replace(reward=factor * batches.reward), jax.random.key(0),
  )  # fmt: skip


@pytest.mark.parametrize(
  "changes", [{"rewards_times": 1000.0}, {"reward_scaling": 1000.0}]
)
def test_larger_rewards_are_as_easy_to_learn_for_xqc(changes):
  plain, plain_metrics = _xqc_after()
  large, large_metrics = _xqc_after(**changes)
  common.assert_close(
    large.critic_params, plain.critic_params, rtol=1e-4, atol=1e-5
  )
  for metric in ("largest_value", "q_mean"):
    np.testing.assert_allclose(
      large_metrics[metric], 1000 * plain_metrics[metric], rtol=1e-4
    )


def test_xqcs_atoms_hold_all_returns():
  case = common.case("xqc")
  _, metrics = _xqc_after(discount=0.9)
  batch_largest = np.abs(common.batches(case.learner).reward).max(axis=1)
  np.testing.assert_allclose(
    metrics["largest_value"], 1.25 * batch_largest.mean() / (1 - 0.9),
    rtol=1e-4,
  )  # fmt: skip
  # Beyond a horizon of 1,000 steps they don't grow.
  _, metrics = _xqc_after(discount=1.0)
  assert metrics["largest_value"] == pytest.approx(
    1.25 * batch_largest.mean() * 1000, rel=1e-3
  )
