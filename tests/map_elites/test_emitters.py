"""Tests of what an emitter is, and of the genetic one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from qdrl_haiku import map_elites
from tests import compilations

# An individual's genotype names its cell.
_GRID = map_elites.Grid((8,), (0.0,), (8.0,))
_OCCUPIED = (1, 2, 6)
_SIZE = 3600


def _repertoire():
  x = np.float32(_OCCUPIED)
  repertoire = map_elites.Repertoire.init(jnp.zeros(2), _GRID)
  return jax.jit(map_elites.Repertoire.add)(
    repertoire, np.stack([x, -x], axis=1), 0 * x, x[:, None] + 0.5
  )


def _vary(key, x1, x2):
  """Offspring that tell both parents, and the noise."""
  noise = jax.random.normal(key, x1.shape[:1])
  return jnp.stack([x1[:, 0], x2[:, 0] + 0 * x1[:, 1], noise], axis=1)


def test_parents_are_drawn_independently_and_uniformly_from_occupied_cells():
  emitter = map_elites.genetic_emitter(_vary, _SIZE)
  offspring, state = jax.jit(emitter.ask)((), _repertoire(), jax.random.key(0))
  assert state == () and offspring.shape == (_SIZE, 3)
  seen, counts = np.unique(
    np.asarray(offspring)[:, :2], axis=0, return_counts=True
  )
  np.testing.assert_array_equal(
    seen, [[a, b] for a in _OCCUPIED for b in _OCCUPIED]
  )
  assert stats.chisquare(counts).pvalue > 1e-3
  noise = np.asarray(offspring)[:, 2]
  assert stats.kstest(noise, stats.norm.cdf).pvalue > 1e-3


def test_a_batch_may_be_empty_and_then_nothing_is_varied():
  emitter = map_elites.genetic_emitter(None, 0)
  offspring, _ = emitter.ask((), _repertoire(), jax.random.key(0))
  assert emitter.batch_size == 0 and offspring.shape == (0, 2)


_OWN = map_elites.genetic_emitter(lambda key, x, y: x, 16)._replace(
  init=lambda key, repertoire: jnp.zeros((), jnp.int32),
  ask=lambda state, repertoire, key: (repertoire.sample(key, 16), state + 1),
)
_ROWS = map_elites.Repertoire.init(
  {"x": jnp.zeros(2)}, map_elites.Grid((4, 4), (0.0, 0.0), (1.0, 1.0))
)


def _score(genotypes, key):
  del key
  return jnp.sum(genotypes["x"], axis=1), genotypes["x"], {}


def test_an_emitter_as_it_should_be_passes_and_compiles_nothing():
  assert compilations.of(lambda: map_elites.check(_OWN, _ROWS)) == 0


@pytest.mark.parametrize(("changes", "message"), [
  (
    {"ask": lambda *args: _OWN.ask(*args)[::-1]},
    "like the repertoire's, and then the emitter's new state.",
  ),
  ({"ask": lambda *args: _OWN.ask(*args)[0]}, "ask returns a dict; return a"),
  (
    {"tell": lambda *args: args[2].fitness},
    "tell returns differs from that of init: the array is float32(16,), not "
    "int32()",
  ),
])
def test_an_emitter_that_is_none_is_refused_with_the_fix(changes, message):
  with pytest.raises(ValueError) as caught:
    map_elites.check(_OWN._replace(**changes), _ROWS)
  assert message in str(caught.value)


def test_a_step_refuses_what_the_emitter_must_not_return():
  emitter = _OWN._replace(batch_size=32)
  with pytest.raises(ValueError, match="return batch_size=32 genotypes"):
    jax.eval_shape(
      lambda key: map_elites.step(emitter, _score, _ROWS, jnp.int32(0), key),
      jax.random.key(1),
    )
