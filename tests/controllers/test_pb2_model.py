"""Tests of the search for the highest upper confidence bound."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from qdrl_haiku.controllers import gaussian_process, pb2_model
from qdrl_haiku.controllers.gaussian_process import Points

_SIZE = 20
_OPTIMISM = 1.5
# Fitness and two hyperparameters.
_CHILD = Points(jnp.float32(0.0), jnp.array([0.7, 0.0, 0.0]), jnp.float32(1.0))


def _points(key):
  keys = jax.random.split(key, 4)
  return Points(
    jax.random.randint(keys[0], (_SIZE,), 0, 9).astype(jnp.float32),
    jax.random.uniform(keys[1], (_SIZE, 3)),
    jax.random.randint(keys[3], (_SIZE,), 0, 2).astype(jnp.float32))


def _posterior(points, values):
  parameters = gaussian_process.init_gaussian_process(3)
  # Nothing is known of the first.
  mask = jnp.arange(_SIZE) > 0
  return gaussian_process.condition_gaussian_process(
    parameters, points, values, mask, jnp.zeros_like(mask))


def _search(key, posterior, taken):
  return pb2_model.maximise_pb2_model_bound(
    key, posterior, _CHILD, taken, _OPTIMISM)


_searched = jax.jit(lambda key, points, values, taken: _search(
  key, _posterior(points, values), taken))
_NONE = jnp.zeros(_SIZE, bool)


def test_the_bound_is_as_high_as_the_best_of_many_random_points():
  def compare(key):
    keys = jax.random.split(key, 4)
    points = _points(keys[0])
    # A sum of random waves.
    waves = 4 * jax.random.normal(keys[1], (3, 3))
    values = jnp.sum(jnp.sin(points.position @ waves), axis=1)
    posterior = _posterior(points, (values - values.mean()) / values.std())

    def predict(position):
      point = _CHILD._replace(position=position)
      return gaussian_process.predict_gaussian_process(posterior, point)

    position = jax.random.uniform(keys[2], (5000, 3)).at[:, 0].set(0.7)
    mean, deviation = jax.vmap(predict)(position)
    found = _search(keys[3], posterior, _NONE)
    return found, predict(found[0]), mean + _OPTIMISM * deviation

  keys = jax.random.split(jax.random.key(0), 30)
  (position, *found), expected, bounds = jax.jit(
    lambda keys: jax.lax.map(compare, keys))(keys)
  np.testing.assert_allclose(found, expected, rtol=1e-5)
  bound = found[0] + _OPTIMISM * found[1]
  assert np.all(bound >= np.max(bounds, 1) - 0.01 * np.ptp(bounds, axis=1))
  np.testing.assert_array_equal(position[:, 0], np.float32(0.7))
  assert np.all((position >= 0) & (position <= 1))


def test_a_position_that_is_taken_is_not_chosen_again():
  key = jax.random.key(0)
  points = _points(key)
  # The best is in a corner, where the first point is.
  points = points._replace(position=points.position.at[0].set(1.0))
  search = functools.partial(
    _searched, key, points, jnp.sum(points.position[:, 1:], axis=1) - 1)
  first, _, _ = search(_NONE)
  np.testing.assert_allclose(first[1:], 1.0, atol=1e-3)
  second, _, _ = search(_NONE.at[0].set(True))
  assert 0.01 < np.max(np.abs(second[1:] - 1)) < 0.3
