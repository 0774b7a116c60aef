"""Tests a user's container: in each cell a Pareto front of two objectives."""

import jax
import jax.numpy as jnp
import numpy as np

from qdrl_haiku import map_elites

_GRID, _SIZE = map_elites.Grid((3,), (0.0,), (3.0,)), 8
_PLACES = map_elites.Unstructured(3 * _SIZE, 1, _GRID)


def _init(genotype, extras):
  one = map_elites.Evaluated(genotype, jnp.zeros(2), jnp.zeros(1), extras)
  state = jax.tree.map(lambda x: jnp.zeros((24, *x.shape), x.dtype), one)
  return state._replace(fitness=jnp.full((24, 2), -jnp.inf))


def _add(state, evaluated):
  both = jax.tree.map(lambda *x: jnp.concatenate(x), state, evaluated)
  x, cells = both.fitness, _GRID.cell(both.descriptors)
  cells = jnp.where(jnp.all(jnp.isfinite(x), axis=1), cells, 3)
  worse = jnp.all(x >= x[:, None], axis=2) & jnp.any(x > x[:, None], axis=2)
  rivals = (cells == cells[:, None]) & (cells < 3)
  stays = (cells < 3) & ~jnp.any(rivals & worse, axis=1)
  turns = jnp.sum(rivals & stays & jnp.tri(len(x), k=-1, dtype=bool), axis=1)
  rows = jnp.where(stays & (turns < _SIZE), cells * _SIZE + turns, len(x))
  empty = state._replace(fitness=jnp.full_like(state.fitness, -jnp.inf))
  return jax.tree.map(lambda x, y: x.at[rows].set(y, mode="drop"), empty, both)


def _show(state):  # Cells are drawn equally often, and so is each of a front.
  sizes = jnp.sum(state.fitness[:, 0].reshape(3, -1) > -jnp.inf, axis=1)
  weights = jnp.repeat(1 / jnp.maximum(sizes, 1), _SIZE)
  return map_elites.Repertoire(
    state.genotypes, jnp.sum(state.fitness, axis=1), state.descriptors,
    jnp.int32(0), _PLACES, state.extra, weights)


def _evaluate(x, key):  # The best are on the line from (0, 0) to (2, 0).
  far = x[:, None, :2] - jnp.array([[0.0, 0.0], [2.0, 0.0]])
  return -jnp.sum(far**2, axis=2), x[:, 2:], {}


def test_fronts_grow_towards_what_none_is_better_than():
  container = map_elites.Container(_PLACES, _init, _add, _show)
  emitter = map_elites.genetic_emitter(
    lambda *x: map_elites.iso_line(*x, 0.1, 0.2), 32)
  step = jax.jit(lambda *x: map_elites.step(emitter, container, _evaluate, *x))
  x = jax.random.uniform(jax.random.key(0), (24, 3), jnp.float32, 0.5, 3.0)
  state, _ = map_elites.init(emitter, container, map_elites.Evaluated(
    x, *_evaluate(x, None)), jax.random.key(0))
  found = []
  for turn in range(200):
    state, _ = step(state, (), jax.random.key(turn))
    fronts = [x[x[:, 0] > -np.inf] for x in np.split(state.fitness, 3)]
    assert not any(np.all(x > x[:, None], axis=2).any() for x in fronts)
    found.append(np.sum(np.sqrt(-np.concatenate(fronts)), axis=1))
  assert len(found[0]) < len(found[-1]) == 3 * _SIZE
  assert max(found[-1]) < 2.05 < max(found[0])  # Both distances of the best.
