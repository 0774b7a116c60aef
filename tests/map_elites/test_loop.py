"""Tests of MAP-Elites as a whole, on functions of two numbers."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qdrl_haiku import map_elites

_BOUND = 5.12
_GRID = map_elites.Grid((32, 32), (-_BOUND,) * 2, (_BOUND,) * 2)
_NUM_GENERATIONS = 300


def _sphere(x):
  return -jnp.sum(x**2, axis=-1)


def _rastrigin(x):
  return -jnp.sum(10 + x**2 - 10 * jnp.cos(2 * jnp.pi * x), axis=-1)


def _jump_or_blend(key, x1, x2):
  """A variation of a user's own: the parents' mean, or somewhere else."""
  jump_key, place_key = jax.random.split(key)
  places = jax.random.uniform(
    place_key, x1.shape, minval=-_BOUND, maxval=_BOUND
  )
  jumps = jax.random.bernoulli(jump_key, 0.5, x1.shape[:1])
  return jnp.where(jumps[:, None], places, (x1 + x2) / 2)


_ISO_LINE = functools.partial(
  map_elites.iso_line, iso_sigma=0.1, line_sigma=0.3
)


@functools.partial(jax.jit, static_argnames=("function", "emitter"))
def _run(function, emitter):
  """A run from a few individuals in a corner; metrics from before it on."""

  def evaluate(x, key):
    """The fitness, at most 0, and the numbers themselves as descriptors."""
    return function(x), x, {}

  key = jax.random.key(0)
  x = jax.random.uniform(key, (8, 2), minval=-_BOUND, maxval=-_BOUND / 2)
  evaluated = map_elites.Evaluated(x, *evaluate(x, key))
  repertoire, state = map_elites.init(
    emitter, _GRID, evaluated, jax.random.fold_in(key, 1)
  )
  start = map_elites.metrics(repertoire)

  def generation(carry, key):
    carry = map_elites.step(emitter, evaluate, *carry, key)
    return carry, map_elites.metrics(carry[0])

  keys = jax.random.split(jax.random.fold_in(key, 2), _NUM_GENERATIONS)
  (repertoire, _), metrics = jax.lax.scan(generation, (repertoire, state), keys)
  return repertoire, jax.tree.map(
    lambda x, y: jnp.concatenate([x[None], y]), start, metrics
  )


@pytest.mark.slow
@pytest.mark.parametrize("function", [_rastrigin, _sphere])
@pytest.mark.parametrize("variation_fn", [_ISO_LINE, _jump_or_blend])
def test_nearly_all_cells_are_found_and_the_best_individual_improves(
  function, variation_fn
):
  emitter = map_elites.genetic_emitter(variation_fn, 128)
  repertoire, metrics = jax.device_get(_run(function, emitter))
  assert metrics["qd/coverage"][0] < 1
  assert metrics["qd/coverage"][-1] > 95
  best = metrics["qd/max_fitness"]
  assert np.all(np.diff(best) >= 0)
  assert best[0] < -8 and best[-1] > -0.5
  # Each is what and where its genotype says.
  occupied = repertoire.occupied
  x = repertoire.genotypes[occupied]
  np.testing.assert_array_equal(repertoire.descriptors[occupied], x)
  np.testing.assert_allclose(
    repertoire.fitness[occupied], function(x), atol=1e-4
  )


def test_metrics_of_a_hand_worked_repertoire():
  grid = map_elites.Grid((5,), (0.0,), (5.0,))
  empty = map_elites.Repertoire.init(jnp.zeros(2), grid)
  measure = jax.jit(lambda r, *x: map_elites.metrics(r.add(*x), 10.0))
  fitness = np.float32([-3.0, 1.0, -2.0, -5.0])
  descriptors = np.float32([[0.5], [2.5], [9.0], [2.5]])
  found = measure(empty, np.zeros((4, 2), np.float32), fitness, descriptors)
  assert {name: float(x) for name, x in found.items()} == {
    "qd/qd_score": 7.0 + 11.0 + 8.0,
    "qd/coverage": 60.0,
    "qd/max_fitness": 1.0,
    "qd/num_outside": 1.0,
  }
  found = map_elites.metrics(empty, 10.0)
  assert found["qd/qd_score"] == found["qd/coverage"] == 0
  assert np.isnan(found["qd/max_fitness"])
