"""Tests of the container whose elites do the same in each episode."""

import jax
import jax.numpy as jnp
import numpy as np
from scipy.spatial import distance

from qdrl_haiku import map_elites, training
from tests.training import common

_GRID = map_elites.Grid((4,), (0.0,), (4.0,))
_CONTAINER = map_elites.low_spread(_GRID)


def test_the_spread_is_the_mean_distance_by_pairs():
  seen = np.random.default_rng(0).normal(size=(3, 5, 2))
  expected = [distance.pdist(x).mean() for x in seen]
  np.testing.assert_allclose(
    map_elites.descriptor_spread(jnp.asarray(seen)), expected, rtol=1e-5)
  assert not np.any(map_elites.descriptor_spread(jnp.asarray(seen[:, :1])))


def test_an_elite_is_replaced_by_fitter_ones_of_no_more_spread():
  def add(state, rows):
    """Adds (fitness, descriptor, spread), who are numbered by fitness."""
    fitness, descriptors, spreads = jnp.float32(rows).T
    return jax.jit(_CONTAINER.add)(state, map_elites.Evaluated(
      fitness, fitness, descriptors[:, None], {map_elites.SPREAD: spreads}))

  example = jax.ShapeDtypeStruct((), jnp.float32)
  state = _CONTAINER.init(example, {map_elites.SPREAD: example})
  # Into an empty cell goes the fittest, whatever its spread.
  state = add(state, [(1, 0.5, 0.2), (2, 0.5, 9.0), (5, 1.5, 1.0)])
  np.testing.assert_array_equal(state.fitness, [2, 5, -np.inf, -np.inf])
  # Fitter, but of more spread; less fit; as wide; not finite; not fitter.
  state = add(state, [
    (8, 1.5, 1.1), (4, 1.5, 0.1), (3, 0.5, 9.0), (9, 0.5, np.nan),
    (np.nan, 0.5, 0.0), (2.5, 0.5, 0.0), (5, 1.5, 0.0)])
  np.testing.assert_array_equal(state.fitness, [3, 5, -np.inf, -np.inf])
  np.testing.assert_array_equal(state.extras[map_elites.SPREAD], [9, 1, 0, 0])


def test_agents_are_spread_as_their_episodes_are():
  grid = map_elites.Grid((6, 6), (-2.0, -2.0), (2.0, 2.0))
  setup = common.repertoire_setup(
    with_pbt=False, container=map_elites.low_spread(grid))
  state, _ = jax.jit(lambda: training.step(
    setup, training.init(setup, common.KEY), common.KEY))()
  spreads = state.repertoire.extras[map_elites.SPREAD]
  found = np.asarray(state.repertoire.occupied)
  assert np.all(spreads[found] > 0) and not np.any(spreads[~found])
