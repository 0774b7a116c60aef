"""Tests of CMA-MEGA and OMG-MEGA."""

import jax
import jax.numpy as jnp
import numpy as np
import optax

from qdrl_haiku import map_elites

_KEY = jax.random.key(0)


def _scores(x):
  """A bowl, and two of its four axes."""
  return -jnp.sum((x - 0.5) ** 2), x[:2]


def _gradients(x):
  fitness, descriptors = jax.jacrev(_scores)(x)
  return jnp.concatenate([fitness[None], descriptors])


def test_offspring_branch_off_and_the_point_moves_to_their_parents():
  coefficients = np.float32([[[1, 2, 3], [0, -1, 0], [2, 0, 0]]])
  inner = map_elites.Strategies(
    init=lambda means: means, ask=lambda states, key: (coefficients, states),
    tell=lambda states, points, ranks, number: points[:, 0] + number[:, None],
    can_go_on=lambda states: jnp.isfinite(states[:, 0]), step_sizes=None,
    num_strategies=1, population_size=3)
  made = map_elites.cma_mega(inner, _gradients, optax.sgd(0.5))
  point = np.float32([[0, 1, 2, 3]])
  points, asked = made.ask(made.init(point), _KEY)
  slope = np.array([0.5, -0.5, -1.5, -2.5]) / np.sqrt(9)
  gradients = np.stack([slope, [1, 0, 0, 0], [0, 1, 0, 0]])
  expected = point[0] + coefficients[0] @ gradients
  np.testing.assert_allclose(points[0], expected, rtol=1e-5)
  # The last two are parents, the last of them the better one.
  told = made.tell(
    asked, points.at[0, 0].set(jnp.nan), np.int32([[2, 1, 0]]), np.int32([2]))
  weights = np.log(2.5) - np.log([2, 1])
  mean = weights @ expected[1:] / weights.sum()
  np.testing.assert_allclose(told.points[0], (point[0] + mean) / 2, rtol=1e-5)
  # The strategy is told of coefficients.
  np.testing.assert_array_equal(told.strategies, [[3, 4, 5]])
  broken = told._replace(points=told.points * jnp.nan)
  assert made.can_go_on(told).tolist() == [True]
  assert made.can_go_on(broken).tolist() == [False]


def test_states_that_were_just_begun_can_be_donated():
  repertoire = map_elites.Repertoire.init(
    jnp.zeros(4), map_elites.Grid((8, 8), (-2.0, -2.0), (2.0, 2.0)))
  omg = map_elites.omg_mega(2, _gradients, 1.0)
  mega = map_elites.cma_mega(
    map_elites.cma_es(3, 2, 8, 1.0), _gradients, optax.sgd(1.0))
  emitters = [
    map_elites.cma_emitter(lambda size, x=x: x, jnp.zeros(4))
    for x in (omg, mega)]
  emitters.append(map_elites.me_es_emitter(
    map_elites.EvolutionStrategy(), 3, jnp.zeros(4)))
  for emitter in emitters:
    state = emitter.init(_KEY, repertoire)
    jax.jit(lambda x: x, donate_argnums=0)(state)


def test_both_fill_a_repertoire():
  cells = map_elites.cells(map_elites.Grid((8, 8), (-2.0, -2.0), (2.0, 2.0)))

  def evaluate(x, key):
    return (*jax.vmap(_scores)(x), {})

  def run(strategies):
    emitter = map_elites.cma_emitter(lambda size: strategies, jnp.zeros(4))

    def turn(i, carry):
      key = jax.random.fold_in(_KEY, i)
      return map_elites.step(emitter, cells, evaluate, *carry, key)

    first = jnp.ones((1, 4))
    first = map_elites.Evaluated(first, *evaluate(first, _KEY))
    return jax.lax.fori_loop(
      0, 40, turn, map_elites.init(emitter, cells, first, _KEY))[0]

  mega = map_elites.cma_mega(
    map_elites.cma_es(3, 2, 8, 1.0), _gradients, optax.sgd(1.0))
  omg = map_elites.omg_mega(16, _gradients, 1.0)
  for found in jax.jit(lambda: (run(mega), run(omg)))():
    assert found.occupied.sum() > 40 and found.fitness.max() > -0.1
