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


def _strategies(size, num_strategies=2, population_size=4):
  """Points are 0, 1, ... beyond the mean; a state is what it was told."""
  steps = jnp.arange(float(population_size))[:, None]

  def init(means):
    shape = (num_strategies, population_size)
    return {
      "mean": means,
      "ranks": jnp.zeros(shape, jnp.int32),
      "parents": jnp.zeros(num_strategies, jnp.int32),
    }

  def tell(states, points, ranks, num_parents):
    assert points.shape == (num_strategies, population_size, size)
    return {"mean": points[:, 1], "ranks": ranks, "parents": num_parents}

  return map_elites.Strategies(
    init=init,
    ask=lambda states, key: (states["mean"][:, None] + steps, states),
    tell=tell,
    can_go_on=lambda states: states["mean"][:, 0] < 100,
    step_sizes=lambda states: states["mean"][:, 0],
    num_strategies=num_strategies,
    population_size=population_size,
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


@pytest.mark.parametrize("shift", [0, 1000])
def test_a_strategy_goes_on_where_it_improves_and_begins_anew_elsewhere(shift):
  elite = {"policy_params": jnp.zeros((2, 3)), "steps": jnp.int32(7)}
  emitter = map_elites.cma_emitter(_strategies, elite)

  @jax.jit
  def turn():
    repertoire = map_elites.Repertoire.init(elite, _GRID).add(
      jax.tree.map(lambda x: x[None] + 5, elite),
      jnp.array([1.0]),
      jnp.full((1, 2), 0.01),
    )
    state = emitter.init(_KEY, repertoire)
    individuals, asked = emitter.ask(state, repertoire, _KEY)
    # The first strategy improves the elite by 1 and 2 and fills a cell; none
    # of the second is finite.
    fitness = jnp.array([2.0, 3.0, -9.0, 0.0] + [jnp.nan] * 4)
    descriptors = jnp.full((8, 2), 0.01).at[2].set(0.99)
    genotypes = jax.tree.map(lambda x: x + shift, individuals)
    evaluated = map_elites.Evaluated(genotypes, fitness, descriptors, {})
    return individuals, emitter.tell(asked, repertoire, evaluated, _KEY)

  individuals, told = turn()
  # Only weights vary, and each strategy's individuals are in order.
  assert individuals["steps"].tolist() == [12] * 8
  np.testing.assert_array_equal(
    individuals["policy_params"][:, 1, 2], [5, 6, 7, 8] * 2
  )
  # A strategy that can't go on begins anew as well.
  goes_on = not shift
  assert told.num_restarts == 2 - goes_on
  assert told.strategies["parents"].tolist() == [3 * goes_on, 0]
  assert told.strategies["mean"][:, 0].tolist() == [6 if goes_on else 5, 5]
  if goes_on:
    assert told.strategies["ranks"][0].tolist() == [2, 1, 0, 3]


@pytest.mark.slow
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
  cma = map_elites.cma_emitter(
    lambda size: map_elites.cma_es(size, 1, batch_size, 0.3), jnp.zeros(_SIZE)
  )
  variations = map_elites.genetic_emitter(variation, batch_size)
  found, expected = (
    jax.jit(jax.vmap(functools.partial(score, emitter)))(seeds)
    for emitter in (cma, variations)
  )
  assert np.all(np.asarray(found) > 2 * np.asarray(expected))
