"""Tests of the search for the highest upper confidence bound."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qdrl_haiku.controllers import gaussian_process, pb2_model
from qdrl_haiku.controllers.gaussian_process import Points

_NUM_POINTS = 20
_OPTIMISM = 1.5


def _points(position, category):
  position, category = jnp.asarray(position), jnp.asarray(category)
  return Points(jnp.full(position.shape[:-1], 9.0), position, category)


def _posterior(points, values, parameters=None):
  parameters = parameters or gaussian_process.initial_parameters(
    points.position.shape[-1]
  )
  mask = jnp.ones(values.shape, bool)
  return gaussian_process.condition(
    parameters, points, values, mask, jnp.zeros_like(mask)
  )


@functools.cache
def _maximise():
  return jax.jit(
    functools.partial(pb2_model.maximise, optimism=_OPTIMISM)
  )


def _search(seed, posterior, members, trains, category=()):
  num_coordinates = members.position.shape[1] - 1
  child = _points([0.7] + [0.0] * num_coordinates, jnp.array(category))
  return _maximise()(
    jax.random.key(seed), posterior, child, members, jnp.array(trains)
  )


@pytest.mark.parametrize(
  "num_coordinates, num_categories", [(1, 0), (2, 2)]
)
def test_the_bound_is_as_high_as_the_best_of_many_random_points(
  num_coordinates, num_categories
):
  category = jnp.ones(num_categories)
  untrained = _points(
    jnp.zeros((1, 1 + num_coordinates)), jnp.zeros((1, num_categories))
  )

  def compare(key):
    keys = jax.random.split(key, 5)
    points = Points(
      jax.random.randint(keys[0], (_NUM_POINTS,), 1, 9).astype(jnp.float32),
      jax.random.uniform(keys[1], (_NUM_POINTS, 1 + num_coordinates)),
      jax.random.randint(keys[2], (_NUM_POINTS, num_categories), 0, 3) * 1.0,
    )
    # A sum of random waves.
    waves = 4 * jax.random.normal(keys[3], (1 + num_coordinates, 3))
    values = jnp.sum(jnp.sin(points.position @ waves), axis=1)
    values += jnp.sum(points.category == 1.0, axis=1)
    values = (values - jnp.mean(values)) / jnp.std(values)
    posterior = _posterior(points, values)

    def bound(point):
      mean, deviation = gaussian_process.predict(posterior, point)
      return mean + _OPTIMISM * deviation

    child = _points(jnp.full(1 + num_coordinates, 0.7), category)
    found = pb2_model.maximise(
      keys[4], posterior, child, untrained, jnp.array([False]), _OPTIMISM
    )
    position = jax.random.uniform(key, (5000, 1 + num_coordinates))
    others = jax.vmap(lambda x: bound(child._replace(position=x)))(
      position.at[:, 0].set(0.7)
    )
    return found, bound(found), others

  keys = jax.random.split(jax.random.key(0), 30)
  found, bounds, others = jax.jit(lambda keys: jax.lax.map(compare, keys))(keys)
  width = np.ptp(others, axis=1)
  assert np.all(bounds >= np.max(others, axis=1) - 0.01 * width)
  np.testing.assert_array_equal(found.position[:, 0], np.float32(0.7))
  assert np.all((found.position >= 0) & (found.position <= 1))
  np.testing.assert_array_equal(found.category, 1.0)


def test_the_position_of_a_member_that_trains_is_not_chosen_again():
  position = jax.random.uniform(jax.random.key(0), (_NUM_POINTS, 3))
  points = _points(position, jnp.zeros((_NUM_POINTS, 0)))
  # The best is in a corner.
  posterior = _posterior(points, jnp.sum(position[:, 1:], axis=1) - 1)
  members = _points(jnp.ones((2, 3)), jnp.zeros((2, 0)))
  first = _search(1, posterior, members, [False, False])
  np.testing.assert_allclose(first.position[1:], 1.0, atol=1e-3)
  second = _search(1, posterior, members, [True, False])
  distance = np.max(np.abs(second.position[1:] - 1))
  assert 0.01 < distance < 0.3


def test_where_all_are_taken_one_is_chosen_all_the_same():
  points = _points(jnp.full((6, 1), 0.7), jnp.arange(6.0)[:, None] % 3)
  posterior = _posterior(points, jnp.array([0.0, 1.0, -1.0] * 2))
  members = _points(jnp.zeros((3, 1)), jnp.arange(3.0)[:, None])
  found = _search(0, posterior, members, [True] * 3, [1.0])
  assert found.category.tolist() == [1.0]
  np.testing.assert_allclose(found.position, [0.7])


def test_a_bound_that_is_no_number_leaves_a_random_point():
  nowhere = _points(jnp.full((4, 3), jnp.nan), jnp.zeros((4, 0)))
  posterior = _posterior(nowhere, jnp.zeros(4))
  found = [
    _search(seed, posterior, nowhere, [False] * 4).position
    for seed in range(2)
  ]
  assert np.all((np.array(found) >= 0) & (np.array(found) <= 1))
  assert np.any(found[0] != found[1])
