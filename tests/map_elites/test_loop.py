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


def _evaluate(function, x, key):
  """The fitness, at most 0, and the numbers themselves as descriptors."""
  del key
  return function(x), x, {"distance": jnp.linalg.norm(x, axis=-1)}


def _jump_or_blend(key, x1, x2):
  """A variation of a user's own: the parents' mean, or somewhere else."""
  jump_key, place_key = jax.random.split(key)
  places = jax.random.uniform(
    place_key, x1.shape, minval=-_BOUND, maxval=_BOUND
  )
  jumps = jax.random.bernoulli(jump_key, 0.5, x1.shape[:1])
  return jnp.where(jumps[:, None], places, (x1 + x2) / 2)


@functools.partial(jax.jit, static_argnames=("function", "emitter"))
def _run(function, emitter, seed):
  """A run from a few individuals in a corner; metrics from before it on."""
  key = jax.random.key(seed)
  evaluate = functools.partial(_evaluate, function)
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


_ISO_LINE = functools.partial(
  map_elites.iso_line, iso_sigma=0.1, line_sigma=0.3
)


@pytest.mark.slow
@pytest.mark.parametrize("function", [_rastrigin, _sphere])
@pytest.mark.parametrize("variation_fn", [_ISO_LINE, _jump_or_blend])
def test_nearly_all_cells_are_found_and_the_best_individual_improves(
  function, variation_fn
):
  emitter = map_elites.genetic_emitter(variation_fn, 128)
  repertoire, metrics = jax.device_get(_run(function, emitter, 0))
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


def test_an_emitter_of_nothing_leaves_the_repertoire_alone():
  emitter = map_elites.genetic_emitter(_ISO_LINE, 0)
  _, metrics = jax.device_get(_run(_sphere, emitter, 0))
  assert np.ptp(metrics["qd/qd_score"]) == 0


def _counting(value, batch_size, needs=()):
  """An emitter of one value, which remembers all that it was told."""
  genetic = map_elites.genetic_emitter(_ISO_LINE, batch_size)

  def ask(state, repertoire, key):
    del repertoire
    return jnp.full((batch_size, 2), value), state | {"asked": key}

  def tell(state, repertoire, evaluated, key):
    del repertoire
    *told, extra = evaluated
    return state | {"told": (*told, extra["distance"], key)}

  return genetic._replace(
    init=lambda key, repertoire: {"begun": key},
    ask=ask,
    tell=tell,
    needs=needs,
    metrics=lambda state: {"told": jnp.sum(state["told"][1])},
  )


def test_emitters_together_hear_of_their_own_individuals_alone():
  emitters = [
    _counting(1.0, 2, ("distance",)), _counting(3.0, 0), _counting(2.0, 3)
  ]  # fmt: skip
  both = map_elites.together(*emitters)
  assert (both.batch_size, both.needs) == (5, ("distance",))
  x = jnp.ones((1, 2))
  repertoire, state = map_elites.init(
    both, _GRID, map_elites.Evaluated(x, -jnp.ones(1), x, {}), jax.random.key(0)
  )
  evaluate = functools.partial(_evaluate, _sphere)
  repertoire, state = map_elites.step(
    both, evaluate, repertoire, state, jax.random.key(1)
  )
  assert int(jnp.sum(repertoire.occupied)) == 2
  for value, size, own in zip((1.0, 3.0, 2.0), (2, 0, 3), state, strict=True):
    x, fitness, descriptors, distance, _ = own["told"]
    np.testing.assert_array_equal(x, np.full((size, 2), value))
    np.testing.assert_array_equal(descriptors, x)
    np.testing.assert_allclose(fitness, -2 * value**2 * np.ones(size))
    np.testing.assert_allclose(distance, value * np.sqrt(2) * np.ones(size))
  # No two draw from one key, nor one twice.
  keys = [key for own in state for key in (own["begun"], own["asked"])]
  keys += [own["told"][-1] for own in state]
  data = {tuple(jax.random.key_data(key).tolist()) for key in keys}
  assert len(data) == 9
  assert {name: float(x) for name, x in both.metrics(state).items()} == {
    "0/told": -4, "1/told": 0, "2/told": -24
  }  # fmt: skip


def test_no_emitter_is_refused():
  with pytest.raises(ValueError, match="there is no emitter"):
    map_elites.together()
