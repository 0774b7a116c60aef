"""Tests of the Gaussian process against plain float64 formulas."""

import functools
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qdrl_haiku.controllers import gaussian_process
from qdrl_haiku.controllers.gaussian_process import Parameters, Points
from tests import marks

_SIZE = 24


def _parameters(**changes):
  values = {
    "variance": 1.7, "noise": 0.03, "length_scales": [0.3, 0.9],
    "forgetting": 0.2} | changes
  return Parameters(*(np.asarray(x) for x in values.values()))


def _points(seed, size=_SIZE, oldest=8):
  random = np.random.default_rng(seed)
  return Points(
    age=random.integers(0, oldest + 1, size).astype(float),
    position=random.uniform(size=(size, 2)),
    is_first=random.integers(0, 2, size).astype(float))


def _values(seed, size=_SIZE):
  return np.random.default_rng(100 + seed).normal(size=size)


def _kernel(parameters, first, second):
  """One pair of points after the other, in Python."""
  result = np.zeros((len(first.age), len(second.age)))
  for i in range(len(first.age)):
    for j in range(len(second.age)):
      distance = sum(
        ((first.position[i, d] - second.position[j, d]) / length) ** 2
        for d, length in enumerate(parameters.length_scales))
      alike = math.exp(-distance / 2)
      apart = abs(first.age[i] - second.age[j])
      remembered = (1 - parameters.forgetting) ** (apart / 2)
      alike += first.is_first[i] * second.is_first[j]
      result[i, j] = parameters.variance * alike * remembered
  return result


def _noisy(parameters, points):
  """The covariance of observations, with the jitter of arrays of that size."""
  noise = parameters.noise + 1e-6 * _SIZE * parameters.variance
  return _kernel(parameters, points, points) + noise * np.eye(len(points.age))


def _expected(parameters, points, values, asked):
  """What scikit-learn's GaussianProcessRegressor computes too, with this kernel
  and the noise as its `alpha`: Rasmussen and Williams, 2.25 and 2.26."""
  covariance = _kernel(parameters, points, asked)
  solved = np.linalg.solve(_noisy(parameters, points), covariance)
  prior = parameters.variance * (1 + asked.is_first)
  variance = prior - np.sum(covariance * solved, axis=0)
  return values @ solved, np.sqrt(variance)


def _likelihood(parameters, points, values):
  covariance = _noisy(parameters, points)
  return (
    -values @ np.linalg.solve(covariance, values) / 2
    - np.linalg.slogdet(covariance)[1] / 2
    - len(values) / 2 * math.log(2 * math.pi))


def _cast(tree, dtype=np.float32):
  return jax.tree.map(lambda x: jnp.asarray(x, dtype), tree)


@jax.jit
def _predict(parameters, points, values, mask, pending, asked):
  posterior = gaussian_process.condition_gaussian_process(
    parameters, points, values, mask, pending)
  return jax.vmap(
    lambda x: gaussian_process.predict_gaussian_process(posterior, x))(asked)


@pytest.mark.parametrize(
  ("dtype", "tolerance"), [(np.float64, 1e-6), (np.float32, 1e-3)])
def test_posterior_is_that_of_the_formulas(dtype, tolerance):
  for seed in range(5):
    parameters, values = _parameters(), _values(seed)
    points = _points(seed)
    asked = _points(50 + seed, 10, oldest=0)
    known = np.random.default_rng(seed).uniform(size=_SIZE) < 0.7
    # The last points are pending: they are known, but their values aren't.
    mask = known & (np.arange(_SIZE) < _SIZE - 4)

    def of(mask, points=points, values=values, asked=asked):
      there = jax.tree.map(lambda x: x[mask], points)
      return _expected(_parameters(), there, values[mask], asked)

    with jax.enable_x64(dtype == np.float64):
      mean, deviation = _predict(
        *_cast((parameters, points, values), dtype), mask, known & ~mask,
        _cast(asked, dtype))
      assert mean.dtype == dtype
      np.testing.assert_allclose(mean, of(mask)[0], atol=tolerance)
      np.testing.assert_allclose(deviation, of(known)[1], atol=tolerance)


def test_gradient_is_that_of_the_likelihood():
  parameters, values = _parameters(), _values(0)
  points = _points(0)
  found = jax.jit(gaussian_process.gaussian_process_gradient)(
    *_cast((parameters, points, values)), jnp.ones(_SIZE, bool))
  for name in Parameters._fields:
    value = np.atleast_1d(getattr(parameters, name))
    for i in range(len(value)):
      both = []
      for step in (-1e-6, 1e-6):
        moved = value + step * (np.arange(len(value)) == i)
        moved = moved.reshape(getattr(parameters, name).shape)
        both.append(
          _likelihood(parameters._replace(**{name: moved}), points, values))
      expected = (both[1] - both[0]) / 2e-6
      derivative = np.atleast_1d(getattr(found, name))[i]
      np.testing.assert_allclose(derivative, expected, rtol=2e-3, atol=2e-3)


def test_fitting_makes_observations_likelier_and_finds_what_matters():
  points = _points(0, oldest=0)
  noise = np.random.default_rng(0).normal(size=_SIZE)
  values = np.sin(6 * points.position[:, 1]) + 0.01 * noise
  values = (values - values.mean()) / values.std()
  start = gaussian_process.init_gaussian_process(2)
  fit = jax.jit(functools.partial(
    gaussian_process.fit_gaussian_process, start, num_steps=40))
  fitted, start = jax.tree.map(
    lambda x: np.asarray(x, np.float64),
    (fit(*_cast((points, values)), jnp.ones(_SIZE, bool)), start))
  assert _likelihood(fitted, points, values) > 10 + _likelihood(
    start, points, values)
  assert fitted.length_scales[0] > 3 * fitted.length_scales[1]
  assert fitted.noise < 0.02


def test_many_equal_points_are_factorised_in_float32():
  size = 256
  points = _cast(Points(np.ones(size), np.full((size, 2), 0.5), np.ones(size)))
  parameters = _cast(_parameters(variance=5.0, noise=1e-3, forgetting=1e-3))
  only = jax.tree.map(lambda x: x[:1], points)
  there = jnp.ones(size, bool)
  mean, deviation = _predict(
    parameters, points, jnp.ones(size), there, ~there, only)
  np.testing.assert_allclose(mean, 1.0, atol=1e-2)
  # A thousandth of the variance of 10 is forgotten.
  assert 0 < deviation[0] < 0.15


@marks.ON_CPU
def test_of_many_points_lapack_makes_no_batches():
  """Its threads wait for each other there, for ever on several devices."""
  size = 257
  text = jax.jit(gaussian_process.gaussian_process_gradient).lower(
    *_cast((_parameters(), _points(0, size), _values(0, size))),
    jnp.ones(size, bool)).as_text()
  batch_dims = re.findall(r'@lapack_.*num_batch_dims = "(\d)"', text)
  assert len(batch_dims) >= 2 and set(batch_dims) == {"0"}
