"""Tests of where the upper confidence bound is looked for."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qdrl_haiku.controllers import gaussian_process, pb2_model
from qdrl_haiku.controllers.gaussian_process import Points

_NUM_DATA_SETS = 50
_NUM_POINTS = 20
_OPTIMISM = 1.5
_TIME, _FIXED = jnp.float32(9.0), jnp.array([0.7])


def _data(key, num_coordinates, num_categories):
  """Observations of a sum of random waves, and the process fitted to them."""
  keys = jax.random.split(key, 5)
  points = Points(
    jax.random.randint(keys[0], (_NUM_POINTS,), 1, 9).astype(jnp.float32),
    jax.random.uniform(keys[1], (_NUM_POINTS, 1 + num_coordinates)),
    jax.random.randint(keys[2], (_NUM_POINTS, num_categories), 0, 3) * 1.0,
  )
  waves = 4 * jax.random.normal(keys[3], (1 + num_coordinates, 3))
  values = jnp.sum(jnp.sin(points.position @ waves), axis=1)
  values += jnp.sum(points.category == 1.0, axis=1)
  values += 0.1 * jax.random.normal(keys[4], (_NUM_POINTS,))
  values = (values - jnp.mean(values)) / jnp.std(values)
  mask = jnp.ones(_NUM_POINTS, bool)
  start = gaussian_process.initial_parameters(1 + num_coordinates)
  parameters = gaussian_process.fit(start, points, values, mask, 40)
  return gaussian_process.condition(parameters, points, values, mask)


def _nobody(num_coordinates, num_categories):
  return (
    jnp.zeros((1, num_coordinates)),
    jnp.zeros((1, num_categories)),
    jnp.zeros(1, bool),
  )


def test_the_bound_is_above_the_mean_by_some_deviations():
  # One observation, of 2 at 0.3. In length scales, 0.5 each, the points asked
  # are 0, 1 and far away from it.
  parameters = gaussian_process.initial_parameters(1)
  points = Points(
    jnp.zeros(3), jnp.array([[0.3], [0.8], [9.0]]), jnp.zeros((3, 0))
  )
  first = jax.tree.map(lambda x: x[:1], points)
  posterior = gaussian_process.condition(
    parameters, first, jnp.array([2.0]), jnp.array([True])
  )
  covariance = np.array([1.0, np.exp(-0.5), 0.0])
  observed = 1 + 0.1 + gaussian_process.JITTER  # With the noise.
  mean = 2 * covariance / observed
  deviation = np.sqrt(1 - covariance**2 / observed)
  np.testing.assert_allclose(
    pb2_model.bound(posterior, points, 1.5),
    mean + 1.5 * deviation,
    rtol=1e-5,
  )


@pytest.mark.parametrize(
  "num_coordinates, num_categories", [(1, 0), (3, 0), (2, 2)]
)
def test_the_bound_is_as_high_as_the_best_of_many_random_points(
  num_coordinates, num_categories
):
  def compare(key):
    posterior = _data(key, num_coordinates, num_categories)
    found = pb2_model.maximise(
      jax.random.fold_in(key, 1),
      posterior,
      _TIME,
      _FIXED,
      jnp.ones(num_categories),
      _nobody(num_coordinates, num_categories),
      _OPTIMISM,
    )
    at_random = 10_000
    position = jax.random.uniform(
      jax.random.fold_in(key, 2), (at_random, 1 + num_coordinates)
    )
    others = Points(
      jnp.full(at_random, _TIME),
      position.at[:, 0].set(_FIXED[0]),
      jnp.ones((at_random, num_categories)),
    )
    only = jax.tree.map(lambda x: x[None], found)
    return (
      found,
      pb2_model.bound(posterior, only, _OPTIMISM)[0],
      pb2_model.bound(posterior, others, _OPTIMISM),
    )

  keys = jax.random.split(jax.random.key(0), _NUM_DATA_SETS)
  found, bounds, others = jax.jit(lambda keys: jax.lax.map(compare, keys))(keys)
  width = np.ptp(others, axis=1)
  assert np.all(bounds >= np.max(others, axis=1) - 0.01 * width)
  np.testing.assert_array_equal(found.position[:, 0], _FIXED[0])
  assert np.all((found.position >= 0) & (found.position <= 1))
  np.testing.assert_array_equal(found.category, 1.0)


@functools.cache
def _maximise(num_categories=0):
  return jax.jit(
    functools.partial(
      pb2_model.maximise,
      time=_TIME,
      fixed=_FIXED,
      category=jnp.ones(num_categories),
      optimism=_OPTIMISM,
    )
  )


def test_what_somebody_has_already_is_not_chosen_again():
  # The best is in a corner, for whoever looks.
  points = Points(
    jnp.full(_NUM_POINTS, 8.0),
    jax.random.uniform(jax.random.key(0), (_NUM_POINTS, 3)),
    jnp.zeros((_NUM_POINTS, 0)),
  )
  values = jnp.sum(points.position[:, 1:], axis=1) - 1
  parameters = gaussian_process.initial_parameters(3)
  posterior = gaussian_process.condition(
    parameters, points, values, jnp.ones(_NUM_POINTS, bool)
  )
  nobody = (jnp.ones((2, 2)), jnp.zeros((2, 0)), jnp.array([False, False]))
  first = _maximise()(jax.random.key(1), posterior, taken=nobody)
  np.testing.assert_allclose(first.position[1:], 1.0, atol=1e-3)
  taken = (*nobody[:2], jnp.array([True, False]))
  second = _maximise()(jax.random.key(1), posterior, taken=taken)
  distance = np.max(np.abs(second.position[1:] - 1))
  assert 0.01 < distance < 0.3


def test_where_all_are_taken_one_is_chosen_all_the_same():
  points = Points(
    jnp.full(6, 8.0), jnp.full((6, 1), 0.7), jnp.arange(6.0)[:, None] % 3
  )
  values = jnp.array([0.0, 1.0, -1.0] * 2)
  posterior = gaussian_process.condition(
    gaussian_process.initial_parameters(1), points, values, jnp.ones(6, bool)
  )
  taken = (jnp.zeros((3, 0)), jnp.arange(3.0)[:, None], jnp.ones(3, bool))
  found = _maximise(1)(jax.random.key(0), posterior, taken=taken)
  assert found.category.tolist() == [1.0]
  assert found.position.tolist() == _FIXED.tolist()


def test_a_bound_that_is_no_number_leaves_a_random_point():
  points = Points(
    jnp.ones(4), jnp.full((4, 3), jnp.nan), jnp.zeros((4, 0))
  )
  posterior = gaussian_process.condition(
    gaussian_process.initial_parameters(3),
    points,
    jnp.zeros(4),
    jnp.ones(4, bool),
  )
  nobody = _nobody(2, 0)
  found = [
    _maximise()(jax.random.key(seed), posterior, taken=nobody).position
    for seed in range(2)
  ]
  assert np.all((np.array(found) >= 0) & (np.array(found) <= 1))
  assert np.any(found[0] != found[1])
