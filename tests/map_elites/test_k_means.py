"""Tests of the search for centroids."""

import jax
import jax.numpy as jnp
import numpy as np

from qdrl_haiku.map_elites import k_means
from tests import jaxprs


def _lloyd(samples, num_cells, num_iterations):
  """Lloyd's algorithm as the books have it, in float64."""
  samples = np.asarray(samples, np.float64)
  centroids = samples[:num_cells].copy()
  for _ in range(num_iterations):
    distances = np.linalg.norm(samples[:, None] - centroids, axis=-1)
    nearest = np.argmin(distances, axis=1)
    for i in range(num_cells):
      if np.any(nearest == i):
        centroids[i] = np.mean(samples[nearest == i], axis=0)
  return centroids


def test_centroids_are_those_of_lloyds_algorithm():
  key = jax.random.key(0)
  bits = jax.random.bits(key, (k_means._MIN_SAMPLES, 3), jnp.uint16)
  samples = (np.asarray(bits, np.float64) + 0.5) / 2**16
  expected = _lloyd(samples, 5, k_means._MAX_ITERATIONS)
  actual = k_means.centroids(key, 5, 3)
  np.testing.assert_allclose(actual, expected, atol=1e-4)


def test_centroids_to_which_no_sample_is_nearest_stay(monkeypatch):
  bits = jax.random.bits
  # Samples of four values only, so that of 16 centroids some coincide, and the
  # first of them takes all their samples.
  monkeypatch.setattr(
    jax.random, "bits", lambda *args: bits(*args) // 2**14 * 2**14 + 2**13
  )
  actual = np.asarray(k_means.centroids(jax.random.key(0), 16, 1))
  np.testing.assert_allclose(
    np.unique(actual), [0.125, 0.375, 0.625, 0.875], atol=1e-5
  )


def test_no_array_is_larger_than_the_samples():
  num_cells, num_dimensions = 30_000, 3
  sizes = [
    variable.aval.size
    for equation in jaxprs.equations(
      lambda key: k_means.centroids(key, num_cells, num_dimensions),
      jax.random.key(0),
    )
    for variable in equation.outvars
  ]
  num_samples = k_means._SAMPLES_PER_CELL * num_cells
  assert max(sizes) <= num_samples * num_dimensions
