"""Tests of generations whose descriptors are learned."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from qdrl_haiku import map_elites
from tests.training import common

_PLACES = 16
_GRID = map_elites.Grid((6, 6), (-2.0, -2.0), (2.0, 2.0))
_DESCRIBER = map_elites.aurora(
  map_elites.AuroraConfig(
    descriptor_size=3, num_looks=2, improvement_interval=2, describer_epochs=5,
    describer_batch_size=8), 2, 5)
_CONTAINER = map_elites.threshold_archive(map_elites.Unstructured(_PLACES, 3))
setup_of = functools.partial(
  common.repertoire_setup, container=_CONTAINER, describer=_DESCRIBER)


@functools.cache
def _history(env):
  """A setup, and four generations of variations, or of members too."""
  measured = None
  if env is common.Placed:
    measured = map_elites.Unstructured(_PLACES, 2, _GRID)
  setup = setup_of(env, measured=measured, with_pbt=env is common.Drift)
  return setup, *common.Trainer(setup).history()


def test_elites_are_measured_by_the_environments_own_descriptor():
  setup, states, reports = _history(common.Placed)
  shown, metrics = states[-1].repertoire.repertoire, reports[-1]
  metrics = metrics.repertoire_metrics
  found, own = shown.occupied, shown.extras["own_descriptors"]
  assert own.shape == (_PLACES, 2) and shown.descriptors.shape == (_PLACES, 3)
  # What is seen last is the place, of each of two episodes.
  last = shown.extras["episodes"][:, :, -1]
  np.testing.assert_allclose(own[found], last.mean(1)[found], rtol=1e-6)
  cells, best = np.asarray(_GRID.cell(own)), {}
  for cell, fitness in zip(cells[found], shown.fitness[found], strict=True):
    best[cell] = max(best.get(cell, -np.inf), fitness)
  assert metrics["qd/coverage"] == np.float32(100 * len(best) / 36)
  np.testing.assert_allclose(
    metrics["qd/qd_score"], sum(best.values()), rtol=1e-5)
  np.testing.assert_allclose(
    metrics["qd/learned_coverage"], 100 * found.sum() / _PLACES)
  np.testing.assert_allclose(
    metrics["qd/learned_qd_score"], shown.fitness[found].sum(), rtol=1e-5)
  assert metrics["qd/learned_num_trainings"] == 2
  measured = setup.measured(shown)
  np.testing.assert_array_equal(measured.descriptors, own)
  assert {*measured.extras} == {"learned_descriptors"}
  assert setup.descriptor_names == ("x", "y")


def test_a_training_places_elites_anew_at_a_distance_of_their_own():
  _, states, _ = _history(common.Placed)
  # The third generation trains for the second time.
  before, after = (x.repertoire.threshold for x in states[2:4])
  state = states[3]
  shown, learned = state.repertoire.repertoire, state.describer
  assert learned.num_trainings == 2 and before > 0
  describe = jax.vmap(jax.vmap(_DESCRIBER.describe, (None, 0)), (None, 0))
  descriptors = describe(learned, shown.extras["episodes"]).mean(1)
  found = shown.occupied
  np.testing.assert_allclose(
    shown.descriptors[found], descriptors[found], rtol=1e-5, atol=1e-6)
  # No two are nearer than the distance, which is of these descriptors.
  points = np.float64(descriptors[found])
  distances = np.linalg.norm(points[:, None] - points, axis=-1)
  nearest = np.sort(distances + 9e9 * np.eye(len(points)), axis=1)[:, 0]
  assert nearest.min() > 0.9 * after
  assert 0.3 < after / np.median(nearest) < 0.9
  assert not 0.99 < after / before < 1.01


def test_no_descriptor_of_the_environments_own_is_needed():
  setup, states, reports = _history(common.Drift)
  metrics = reports[-1].repertoire_metrics
  assert setup.descriptor_names == ("learned 1", "learned 2", "learned 3")
  shown = states[-1].repertoire.repertoire
  assert {*shown.extras} == {"episodes"}
  np.testing.assert_allclose(
    metrics["qd/coverage"], 100 * shown.occupied.sum() / _PLACES)
  assert metrics["qd/threshold"] > 0 and "qd/learned_loss" in metrics
  assert setup.measured(shown) is shown
  assert jnp.isfinite(reports[-1].fitness).all()
