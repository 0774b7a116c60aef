"""Tests of CMA-ME, and of the strategies that search for improvements."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qdrl_haiku import map_elites
from qdrl_haiku.map_elites.emitters import rankings

_SIZE, _POPULATION = 3, 6
_KEY = jax.random.key(0)


def _update(mean, sigma, points, ranks, num_parents, turns=2):
  """Hansen's tutorial in float64, with the same points again each time."""
  m, n = num_parents, _SIZE
  weights = np.log(m + 0.5) - np.log(np.arange(1, m + 1))
  weights /= weights.sum()
  mu = 1 / np.sum(weights**2)
  cs = (mu + 2) / (n + mu + 5)
  ds = 1 + 2 * max(0, np.sqrt((mu - 1) / (n + 1)) - 1) + cs
  cc = (4 + mu / n) / (n + 4 + 2 * mu / n)
  c1 = 2 / ((n + 1.3) ** 2 + mu)
  cmu = min(1 - c1, 2 * (mu - 2 + 1 / mu) / ((n + 2) ** 2 + mu))
  chi = np.sqrt(n) * (1 - 1 / (4 * n) + 1 / (21 * n**2))
  C, ps, pc = np.eye(n), np.zeros(n), np.zeros(n)
  parents = points[np.argsort(ranks)[:m]]
  for _ in range(turns):
    values, B = np.linalg.eigh(C)
    y = (parents - mean) / sigma
    step = weights @ y
    mean = mean + sigma * step
    whitened = B @ (B.T @ step / np.sqrt(values))
    ps = (1 - cs) * ps + np.sqrt(cs * (2 - cs) * mu) * whitened
    pc = (1 - cc) * pc + np.sqrt(cc * (2 - cc) * mu) * step
    sigma = sigma * np.exp(cs / ds * (np.linalg.norm(ps) / chi - 1))
    C = (1 - c1 - cmu) * C + c1 * np.outer(pc, pc)
    C = C + cmu * (y.T * weights) @ y
  return mean, sigma, C


@pytest.fixture(scope="module")
def strategies():
  """Two strategies, and a turn of theirs with the same points twice."""
  made = map_elites.cma_es(_SIZE, 2, _POPULATION, 0.5)

  @jax.jit
  def turns(states, points, ranks, num_parents):
    def turn(_, states):
      return made.tell(states, points, ranks, jnp.full(2, num_parents))

    return jax.lax.fori_loop(0, 2, turn, states)

  return made._replace(
    init=jax.jit(made.init), tell=turns, can_go_on=jax.jit(made.can_go_on))


@pytest.mark.parametrize("num_parents", [2, 5])
def test_an_update_is_that_of_the_tutorial(strategies, num_parents):
  rng = np.random.default_rng(0)
  means = rng.normal(size=(2, _SIZE))
  points = means[:, None] + 0.2 * rng.normal(size=(2, _POPULATION, _SIZE))
  ranks = np.stack([rng.permutation(_POPULATION) for _ in range(2)])
  states = strategies.tell(
    strategies.init(np.float32(means)), np.float32(points), np.int32(ranks),
    num_parents)
  assert np.all(strategies.can_go_on(states))
  for i in range(2):
    mean, sigma, C = _update(means[i], 0.5, points[i], ranks[i], num_parents)
    np.testing.assert_allclose(states.mean[i], mean, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(states.std[i], sigma, rtol=1e-4)
    np.testing.assert_allclose(states.C[i], C, rtol=1e-3, atol=1e-5)


def test_what_is_no_parent_has_no_influence(strategies):
  points = np.ones((2, _POPULATION, _SIZE), np.float32)
  points[:, 2:] = np.nan
  ranks = np.tile(np.arange(_POPULATION, dtype=np.int32), (2, 1))
  states = strategies.init(np.zeros((2, _SIZE), np.float32))
  told = strategies.tell(states, points, ranks, 2)
  np.testing.assert_allclose(told.mean, 1.0, rtol=1e-6)


def test_one_that_is_ill_conditioned_or_not_finite_can_not_go_on(strategies):
  states = strategies.init(np.zeros((2, _SIZE), np.float32))
  assert strategies.can_go_on(states).tolist() == [True, True]
  # The first is wide, but alike in all directions.
  flat = states.replace(D=states.D.at[0].multiply(1e4).at[1, 0].set(1e4))
  assert strategies.can_go_on(flat).tolist() == [True, False]
  broken = states.replace(std=states.std.at[0].set(jnp.nan))
  assert strategies.can_go_on(broken).tolist() == [False, True]


def _strategies(size):
  """Two of four points 0, 1, ... beyond the mean; a state is what it was told.
  """
  steps = jnp.arange(4.0)[:, None]

  def tell(states, points, ranks, num_parents):
    assert points.shape == (2, 4, size)
    return {"mean": points[:, 1], "ranks": ranks, "parents": num_parents}

  return map_elites.Strategies(
    init=lambda means: {
      "mean": means, "ranks": jnp.zeros((2, 4), jnp.int32),
      "parents": jnp.zeros(2, jnp.int32)},
    ask=lambda states, key: (states["mean"][:, None] + steps, states),
    tell=tell, can_go_on=lambda states: states["mean"][:, 0] < 100,
    step_sizes=lambda states: states["mean"][:, 0], num_strategies=2,
    population_size=4)


_CELLS = map_elites.Grid((4,), (0.0,), (8.0,))
# Seen in cells whose elites have a fitness of 0, none, 2, and 3.
_FITNESS = np.float32([[5, np.nan, -3, 9, -2, 2]])
_PLACES = np.float32([0.5, 2.5, 2.5, 6.5, 3.5, 4.5])
_BEFORE = np.float32([0, -np.inf, 2, 3])


def _ranked(ranking, fitness=_FITNESS, container=None, sign=1.0):
  """The parents of one strategy, the best first."""
  before = jnp.maximum(_BEFORE, -4) if container else _BEFORE
  container = container or map_elites.cells(_CELLS)
  evaluated = map_elites.Evaluated(
    jnp.zeros(6), jnp.asarray(fitness[0]), jnp.asarray(_PLACES)[:, None], {})
  ranks, num_parents = jax.jit(
    rankings.rank_offspring, static_argnums=(0, 5))(
      map_elites.RANKINGS[ranking], before, jnp.full((1, 1), sign),
      container.init(jnp.float32(0), {}), evaluated, 1)
  return np.argsort(ranks[0])[: num_parents[0]].tolist()


def test_new_cells_come_first_then_improvements():
  assert _ranked("improvement") == [4, 2, 3, 0]


def test_a_direction_ranks_those_that_fill_or_improve_a_cell():
  assert _ranked("random_direction") == [4, 2, 3, 0]
  assert _ranked("random_direction", sign=-1.0) == [2, 4, 0, 3]


def test_the_best_half_are_parents_by_fitness_or_by_soft_thresholds():
  soft = map_elites.soft_cells(_CELLS, 0.1, -4.0)
  assert _ranked("optimizing") == [3, 0, 5]
  # Those in the cell that is empty exceed -4 by 1 and 2.
  assert _ranked("improvement", container=soft) == [3, 0, 4]
  assert _ranked("improvement", _FITNESS - 7, soft) == [3, 0, 4]


@pytest.mark.parametrize("fitness", [0.0, np.nan])
def test_where_nothing_differs_there_are_no_parents(fitness):
  assert _ranked("optimizing", np.full_like(_FITNESS, fitness)) == []


def test_directions_are_in_units_of_the_ranges():
  grid = map_elites.Grid((2, 2), (0.0, -1.0), (0.01, 99.0))
  repertoire = map_elites.Repertoire.init(jnp.zeros(1), grid)
  drawn = rankings.draw_directions(
    rankings.random_direction, _KEY, repertoire, 2000)
  np.testing.assert_allclose(np.std(drawn, axis=0), [0.01, 100], rtol=0.1)
  assert rankings.draw_directions(
    rankings.improvement, _KEY, repertoire, 2) == ()


@pytest.mark.parametrize("shift", [0, 1000])
def test_a_strategy_goes_on_where_it_improves_and_begins_anew_elsewhere(shift):
  grid = map_elites.Grid((16, 16), (0.0, 0.0), (1.0, 1.0))
  elite = {"policy_params": jnp.zeros((2, 3)), "steps": jnp.int32(7)}
  emitter = map_elites.cma_emitter(_strategies, elite)

  @jax.jit
  def turn():
    repertoire = map_elites.Repertoire.init(elite, grid).add(
      jax.tree.map(lambda x: x[None] + 5, elite), jnp.array([1.0]),
      jnp.full((1, 2), 0.01))
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
    individuals["policy_params"][:, 1, 2], [5, 6, 7, 8] * 2)
  # A strategy that can't go on begins anew as well.
  goes_on = not shift
  assert told.num_restarts == 2 - goes_on
  assert told.strategies["parents"].tolist() == [3 * goes_on, 0]
  assert told.strategies["mean"][:, 0].tolist() == [6 if goes_on else 5, 5]
  if goes_on:
    assert told.strategies["ranks"][0].tolist() == [2, 1, 0, 3]
