"""Tests of running statistics."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qdrl_haiku.learners import statistics

_UPDATE = jax.jit(statistics.update)
_OFFSETS = np.array([0.0, 30.0, -2.0])
_SCALES = np.array([1.0, 0.5, 20.0])


def _data(num=60, seed=0):
  rng = np.random.default_rng(seed)
  return (rng.normal(size=(num, 3)) * _SCALES + _OFFSETS).astype(np.float32)


def _run(*batches):
  state = statistics.init(3)
  for batch in batches:
    state = _UPDATE(state, batch)
  return state


def _assert_statistics_of(state, data):
  data = data.astype(np.float64)
  assert float(state.num_observations) == len(data)
  np.testing.assert_allclose(state.mean, data.mean(axis=0), rtol=1e-5,
                             atol=1e-5)
  np.testing.assert_allclose(state.std, data.std(axis=0), rtol=1e-5)
  np.testing.assert_allclose(
    state.variance, data.var(axis=0), rtol=1e-5
  )


@pytest.mark.parametrize(
  "splits",
  [(), (1,), (59,), (10, 20, 30, 40, 50)],
  ids=["one", "first", "last", "tens"],
)
def test_any_split_into_batches_gives_the_statistics_of_all_data(splits):
  data = _data()
  _assert_statistics_of(_run(*np.split(data, splits)), data)


@pytest.mark.parametrize("value", [1e30, -3e38, 1e16, np.nan, np.inf])
def test_an_observation_whose_square_overflows_is_left_out(value):
  data = _data()
  broken = np.insert(data, 17, data[0], axis=0)
  broken[17, 1] = value
  for leaf, expected in zip(_run(broken), _run(data), strict=True):
    np.testing.assert_allclose(leaf, expected, rtol=1e-6)
  alone = _run(data, broken[17:18])
  for leaf, expected in zip(alone, _run(data), strict=True):
    np.testing.assert_array_equal(leaf, expected)


def test_an_observation_up_to_the_bound_counts_and_leaves_all_finite():
  state = _run(np.full((1000, 3), 1e15, np.float32), -_data() * 1e13)
  assert float(state.num_observations) == 1060
  assert np.isfinite(state.variance).all() and np.isfinite(state.std).all()


@pytest.mark.parametrize("value", [1e30, np.nan, -np.inf])
def test_a_reward_beyond_all_bounds_does_not_say_how_large_rewards_are(value):
  reward = np.float32([[1.0, -3.0], [2.0, value]])
  state = statistics.update_rewards(statistics.init_rewards(), reward)
  assert float(state.largest) == 2.5


def test_any_leading_axes_count_as_observations():
  data = _data(24)
  _assert_statistics_of(_run(data.reshape(2, 3, 4, 3)), data)
  _assert_statistics_of(_run(data[0], data[1:]), data)


def test_a_distant_mean_does_not_cost_the_spread():
  data = _data() + np.float32(5000.0)
  state = _run(*np.split(data, 6))
  # The mean itself is only known to 5e-4 here; the mean of squares less the
  # squared mean would leave no digit of the spread 0.4.
  np.testing.assert_allclose(
    state.std, data.astype(np.float64).std(axis=0), rtol=1e-3
  )


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_observations_with_a_non_finite_entry_are_left_out(value):
  data = _data()
  broken = data.copy()
  rows = [0, 7, 31, 59]
  broken[rows, [0, 1, 2, 1]] = value
  kept = np.delete(data, rows, axis=0)
  _assert_statistics_of(_run(*np.split(broken, 4)), kept)


def test_a_batch_without_finite_observations_changes_nothing():
  before = _run(_data())
  after = _UPDATE(before, np.full((5, 3), np.nan, np.float32))
  jax.tree.map(np.testing.assert_array_equal, after, before)
  first = _run(np.full((5, 3), np.nan, np.float32))
  jax.tree.map(np.testing.assert_array_equal, first, statistics.init(3))


def test_normalize_is_the_formula_for_any_leading_axes():
  state = _run(_data())
  reference = _data().astype(np.float64)
  observation = _data(6, seed=1).reshape(2, 3, 3)
  np.testing.assert_allclose(
    statistics.normalize(state, observation),
    (observation - reference.mean(axis=0)) / reference.std(axis=0),
    rtol=1e-4, atol=1e-4,
  )


def test_normalized_observations_are_clipped_at_10():
  state = _run(_data())
  observation = np.array([1e6, 30.0, -1e6], np.float32)
  normalized = statistics.normalize(state, observation)
  np.testing.assert_array_equal(normalized[::2], [10.0, -10.0])
  assert abs(normalized[1]) < 1


def test_without_statistics_nothing_changes():
  observation = np.array([1e6, 30.0, -1e6], np.float32)
  assert statistics.normalize(None, observation) is observation


@pytest.mark.parametrize("num", [0, 1])
def test_less_than_two_observations_have_standard_deviation_1(num):
  state = _run(_data(5)[:num]) if num else statistics.init(3)
  np.testing.assert_array_equal(state.std, np.ones(3))


def test_a_constant_entry_stays_finite():
  data = _data()
  data[:, 1] = 4.0
  normalized = statistics.normalize(_run(data), data)
  np.testing.assert_array_equal(normalized[:, 1], 0)
  assert np.isfinite(normalized).all()


def test_the_largest_reward_is_averaged_and_slowly_forgotten():
  update = jax.jit(statistics.update_rewards)
  state = statistics.init_rewards()
  # Of two batches each; their largest are 3 and 2, 4 and 6, 0 and 0.
  for rewards, expected in (
    ([[3.0, -1.0], [1.0, -2.0]], 2.5),
    ([[-4.0, 0.0], [6.0, 5.0]], 3.75),
    ([[0.0, 0.0], [0.0, 0.0]], 2.5),
  ):
    state = update(state, jnp.array(rewards))
    np.testing.assert_allclose(state.largest, expected, rtol=1e-6)
  late = update(state._replace(num_updates=jnp.int32(5000)), jnp.zeros((2, 2)))
  np.testing.assert_allclose(late.largest, 2.5 * 0.999, rtol=1e-6)
