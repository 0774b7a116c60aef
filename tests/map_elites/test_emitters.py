"""Tests of the genetic emitter."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from qdrl_haiku import map_elites

# An individual's genotype names its cell.
_GRID = map_elites.Grid((8,), (0.0,), (8.0,))
_OCCUPIED = (1, 2, 6)


@functools.cache
def _repertoire(cells=_OCCUPIED):
  x = np.float32(cells)
  repertoire = map_elites.Repertoire.init(jnp.zeros(2), _GRID)
  return jax.jit(map_elites.Repertoire.add)(
    repertoire, np.stack([x, -x], axis=1), 0 * x, x[:, None] + 0.5
  )


def _pair(key, x1, x2):
  """Offspring that tell who the parents were."""
  del key
  return jnp.stack([x1[:, 0], x2[:, 0]], axis=1)


@functools.partial(jax.jit, static_argnums=0)
def _ask(emitter, repertoire, seed=0):
  state = emitter.init(jax.random.key(0), repertoire)
  return emitter.ask(state, repertoire, jax.random.key(seed))


def test_parents_are_drawn_independently_and_uniformly_from_occupied_cells():
  emitter = map_elites.genetic_emitter(_pair, 3600)
  pairs, state = _ask(emitter, _repertoire())
  assert state == () and pairs.shape == (3600, 2)
  seen, counts = np.unique(np.asarray(pairs), axis=0, return_counts=True)
  np.testing.assert_array_equal(
    seen, [[a, b] for a in _OCCUPIED for b in _OCCUPIED]
  )
  assert stats.chisquare(counts).pvalue > 1e-3


def test_offspring_are_those_of_the_variation_function():
  def vary(key, x1, x2):
    return x1 + x2 + jax.random.normal(key, x1.shape)

  emitter = map_elites.genetic_emitter(vary, 500)
  repertoire = _repertoire((3,))
  offspring, _ = _ask(emitter, repertoire)
  noise = np.asarray(offspring) - [[6.0, -6.0]]
  assert stats.kstest(noise.ravel(), stats.norm.cdf).pvalue > 1e-3
  again, _ = _ask(emitter, repertoire)
  other, _ = _ask(emitter, repertoire, seed=1)
  np.testing.assert_array_equal(offspring, again)
  assert not np.any(np.asarray(offspring == other))


def test_a_batch_may_be_empty_and_then_nothing_is_varied():
  emitter = map_elites.genetic_emitter(None, 0)
  offspring, _ = _ask(emitter, _repertoire())
  assert emitter.batch_size == 0 and offspring.shape == (0, 2)


def test_an_empty_repertoire_has_zeros_for_parents():
  emitter = map_elites.genetic_emitter(lambda key, x1, x2: x1 + x2, 4)
  repertoire = map_elites.Repertoire.init(jnp.zeros(2), _GRID)
  offspring, _ = _ask(emitter, repertoire)
  np.testing.assert_array_equal(offspring, np.zeros((4, 2)))


def test_tell_takes_extra_scores_and_changes_nothing():
  emitter = map_elites.genetic_emitter(_pair, 3)
  repertoire = _repertoire()
  offspring, state = _ask(emitter, repertoire)
  evaluated = map_elites.Evaluated(
    offspring, jnp.zeros(3), jnp.zeros((3, 1)), {"lengths": jnp.zeros(3)}
  )
  state = emitter.tell(state, repertoire, evaluated, jax.random.key(0))
  assert state == ()


@pytest.mark.parametrize("batch_size", [-1, 1.5, True, None])
def test_batch_sizes_that_are_no_counts_are_refused(batch_size):
  complaint = f"batch_size={batch_size} is not a count; use an integer of at"
  with pytest.raises(ValueError, match=complaint):
    map_elites.genetic_emitter(_pair, batch_size)
