"""Tests of CMA-ME."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qdrl_haiku import map_elites
from qdrl_haiku.environments import functions
from qdrl_haiku.map_elites.cma_emitter import ranks_of

_GRID = map_elites.Grid((16, 16), (0.0, 0.0), (1.0, 1.0))
_SIZE = 8
_KEY = jax.random.key(0)


def _cma(batch_size, num_strategies=1, step_size=0.3):
  return map_elites.cma_emitter(
    lambda size: map_elites.cma_es(
      size, num_strategies, batch_size // num_strategies, step_size
    ),
    jnp.zeros(_SIZE),
  )


def _sphere(points, key):
  scores = jax.vmap(functions.sphere_scores)((jnp.tanh(points) + 1) / 2)
  return *scores, {}


def test_new_cells_come_first_then_improvements():
  is_parent = np.array([[1, 0, 1, 1, 1, 0]], bool)
  is_new = np.array([[0, 1, 1, 0, 1, 0]], bool)
  improvement = np.array([[5.0, np.nan, -3.0, 7.0, -2.0, 99.0]])
  ranks, num_parents = ranks_of(is_parent, is_new, improvement)
  assert num_parents.tolist() == [4]
  np.testing.assert_array_equal(np.argsort(ranks[0])[:4], [4, 2, 3, 0])


def test_it_goes_on_where_it_improves_and_begins_anew_elsewhere():
  emitter = _cma(8, num_strategies=2)

  @jax.jit
  def turn():
    repertoire = map_elites.Repertoire.init(jnp.zeros(_SIZE), _GRID)
    first = jnp.linspace(-1, 1, 4 * _SIZE).reshape(4, _SIZE)
    repertoire = repertoire.add(first, *_sphere(first, None)[:2])
    state = emitter.init(_KEY, repertoire)
    individuals, state = emitter.ask(state, repertoire, _KEY)
    fitness, descriptors, _ = _sphere(individuals, None)
    # The first strategy's are better than all that is known; of the second
    # one's nothing is known.
    fitness = jnp.where(jnp.arange(8) < 4, fitness + 1e3, jnp.nan)
    evaluated = map_elites.Evaluated(individuals, fitness, descriptors, {})
    told = emitter.tell(state, repertoire, evaluated, _KEY)
    return repertoire, state, told

  repertoire, state, told = turn()
  assert told.num_restarts == 1
  assert all(np.isfinite(x).all() for x in jax.tree.leaves(told.strategies.C))
  assert np.any(told.strategies.mean[0] != state.elites[0])
  np.testing.assert_array_equal(told.strategies.mean[1], told.elites[1])
  assert told.elites[1] in np.asarray(repertoire.genotypes)
  assert told.strategies.std[1] == np.float32(0.3)
  np.testing.assert_array_equal(told.strategies.C[1], np.eye(_SIZE))


def test_only_weights_vary():
  elite = {"policy_params": jnp.zeros((2, 3)), "steps": jnp.int32(7)}
  emitter = map_elites.cma_emitter(
    lambda size: map_elites.cma_es(size, 1, 4, 0.3), elite
  )

  @jax.jit
  def ask():
    repertoire = map_elites.Repertoire.init(elite, _GRID).add(
      jax.tree.map(lambda x: x[None], elite), jnp.zeros(1), jnp.zeros((1, 2))
    )
    state = emitter.init(_KEY, repertoire)
    return emitter.ask(state, repertoire, _KEY)[0]

  individuals = ask()
  assert individuals["steps"].tolist() == [7] * 4
  assert len(np.unique(individuals["policy_params"])) == 4 * 6


def test_it_finds_larger_steps_where_those_of_variations_are_too_small():
  batch_size, num_generations, seeds = 64, 40, jnp.arange(5)

  def score(emitter, seed):
    first_key, key = jax.random.split(jax.random.key(seed))
    first = 0.1 * jax.random.normal(first_key, (batch_size, _SIZE))
    evaluated = map_elites.Evaluated(first, *_sphere(first, None))
    state = map_elites.init(emitter, _GRID, evaluated, key)

    def step(state, key):
      return map_elites.step(emitter, _sphere, *state, key), ()

    keys = jax.random.split(key, num_generations)
    (repertoire, _), _ = jax.lax.scan(step, state, keys)
    return map_elites.qd_score(repertoire, 25.0 * _SIZE)

  variation = functools.partial(
    map_elites.iso_line, iso_sigma=0.01, line_sigma=0.1
  )
  variations = map_elites.genetic_emitter(variation, batch_size)
  found, expected = (
    jax.jit(jax.vmap(functools.partial(score, emitter)))(seeds)
    for emitter in (_cma(batch_size), variations)
  )
  assert np.all(np.asarray(found) > 2 * np.asarray(expected))


def test_no_cells_to_improve_are_refused():
  repertoire = map_elites.Repertoire.init(
    jnp.zeros(_SIZE), map_elites.Unstructured(8, 2)
  )
  with pytest.raises(ValueError, match="by the cells that they improve"):
    _cma(8).init(_KEY, repertoire)
