"""Tests of running statistics."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qdrl_haiku.learners import statistics

_UPDATE = jax.jit(statistics.update_statistics)
_OFFSETS = np.array([0.0, 30.0, -2.0])
_SCALES = np.array([1.0, 0.5, 20.0])


def _data(num=60, seed=0):
  rng = np.random.default_rng(seed)
  return (rng.normal(size=(num, 3)) * _SCALES + _OFFSETS).astype(np.float32)


def _run(*batches):
  state = statistics.init_statistics(3)
  for batch in batches:
    state = _UPDATE(state, batch)
  return state


def _assert_statistics_of(state, data):
  data = data.astype(np.float64)
  assert float(state.num_observations) == len(data)
  np.testing.assert_allclose(
    state.mean, data.mean(axis=0), rtol=1e-5, atol=1e-5)
  np.testing.assert_allclose(state.std, data.std(axis=0), rtol=1e-5)
  np.testing.assert_allclose(state.variance, data.var(axis=0), rtol=1e-5)


def test_any_batches_of_any_axes_give_the_statistics_of_all_data():
  data = _data()
  _assert_statistics_of(_run(data), data)
  _assert_statistics_of(_run(data[0], data[1:]), data)
  _assert_statistics_of(_run(data.reshape(2, 3, 10, 3)), data)
  _assert_statistics_of(_run(*np.split(data, 6)), data)


@pytest.mark.parametrize("value", [1e30, -3e38, 1e16, np.nan, np.inf])
def test_an_observation_whose_square_overflows_is_left_out(value):
  data = _data()
  broken = data.copy()
  rows = [0, 7, 31, 59]
  broken[rows, [0, 1, 2, 1]] = value
  kept = np.delete(data, rows, axis=0)
  _assert_statistics_of(_run(*np.split(broken, 4)), kept)
  for first in (_run(), _run(data)):
    jax.tree.map(
      np.testing.assert_array_equal, _UPDATE(first, broken[rows]), first)


def test_an_observation_up_to_the_bound_counts_and_leaves_all_finite():
  state = _run(np.full((1000, 3), 1e15, np.float32), -_data() * 1e13)
  assert float(state.num_observations) == 1060
  assert np.isfinite(state.variance).all() and np.isfinite(state.std).all()


def test_a_distant_mean_does_not_cost_the_spread():
  data = _data() + np.float32(5000.0)
  state = _run(*np.split(data, 6))
  # The mean itself is only known to 5e-4 here; the mean of squares less the
  # squared mean would leave no digit of the spread 0.4.
  np.testing.assert_allclose(
    state.std, data.astype(np.float64).std(axis=0), rtol=1e-3)


def test_normalized_observations_are_the_formula_clipped_at_10():
  state, whole = _run(_data()), _data().astype(np.float64)
  observation = _data(6, seed=1).reshape(2, 3, 3)
  observation[0, 0] = [1e6, 30.0, -1e6]
  expected = (observation - whole.mean(axis=0)) / whole.std(axis=0)
  np.testing.assert_allclose(
    statistics.normalize_by_statistics(state, observation),
    np.clip(expected, -10, 10), rtol=1e-4, atol=1e-4)
  assert statistics.normalize_by_statistics(None, observation) is observation


def test_few_observations_or_a_constant_entry_stay_finite():
  for state in (_run(), _run(_data(1))):
    np.testing.assert_array_equal(state.std, np.ones(3))
  data = _data()
  data[:, 1] = 4.0
  normalized = statistics.normalize_by_statistics(_run(data), data)
  np.testing.assert_array_equal(normalized[:, 1], 0)
  assert np.isfinite(normalized).all()


def test_the_largest_reward_is_averaged_and_slowly_forgotten():
  update = jax.jit(statistics.update_reward_statistics)
  state = statistics.init_reward_statistics()
  # Of two batches each; their largest are 3 and 2, 4 and 6, 0 and 0, beyond
  # all bounds.
  for rewards, expected in (
    ([[3.0, -1.0], [1.0, -2.0]], 2.5),
    ([[-4.0, 0.0], [6.0, 5.0]], 3.75),
    ([[0.0, np.nan], [1e30, -np.inf]], 2.5),
  ):
    state = update(state, jnp.array(rewards))
    np.testing.assert_allclose(state.largest, expected, rtol=1e-6)
  late = update(state._replace(num_updates=jnp.int32(5000)), jnp.zeros((2, 2)))
  np.testing.assert_allclose(late.largest, 2.5 * 0.999, rtol=1e-6)
