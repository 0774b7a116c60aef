"""Tests multi-task MAP-Elites: a cell is a task, whose fitness is its own.

Mouret and Maguire (2020), "Quality diversity for multi-task optimization",
arXiv:2003.04407; their arm, whose length and range of angles are the task.
"""

import jax
import jax.numpy as jnp

from qdrl_haiku import map_elites

_CELLS = map_elites.cvt(jax.random.key(0), 64, (0.5, 0.2), (1.0, 1.0))
_TARGET = jnp.array([0.3, 0.3])


def _evaluate(genotypes, key):
  """How near the tip of an arm of ten joints comes to one place."""
  length, range_ = jnp.unstack(_CELLS.centroids[genotypes["task"]], axis=1)
  angles = (jax.nn.sigmoid(genotypes["x"]) - 0.5) * 2 * jnp.pi
  angles = jnp.cumsum(angles * range_[:, None], axis=1)
  tip = jnp.stack([jnp.mean(jnp.cos(angles), 1), jnp.mean(jnp.sin(angles), 1)])
  distance = jnp.linalg.norm(length * tip - _TARGET[:, None], axis=0)
  return -distance, _CELLS.centroids[genotypes["task"]], {}


def _vary(num_drawn):
  """Varies for the task nearest to the parent's of some that are drawn."""
  def vary(key, first, second):
    x = map_elites.iso_line(key, first["x"], second["x"], 0.05, 0.2)
    drawn = jax.random.randint(
      jax.random.fold_in(key, 1), (len(x), num_drawn), 0, _CELLS.num_cells)
    centroids = _CELLS.centroids
    away = centroids[drawn] - centroids[first["task"]][:, None]
    nearest = jnp.argmin(jnp.linalg.norm(away, axis=2), axis=1)
    return {"x": x, "task": drawn[jnp.arange(len(x)), nearest]}

  return vary


def _fill(num_drawn):
  container = map_elites.cells(_CELLS)
  emitter = map_elites.genetic_emitter(_vary(num_drawn), 64)
  x = {
    "x": jax.random.normal(jax.random.key(1), (64, 10)),
    "task": jnp.arange(64)}
  first = map_elites.Evaluated(x, *_evaluate(x, None))
  state = map_elites.init(emitter, container, first, jax.random.key(2))
  step = jax.jit(
    lambda *x: map_elites.step(emitter, container, _evaluate, *x))
  for key in jax.random.split(jax.random.key(3), 100):
    state = step(*state, key)
  return first.fitness, state[0].fitness


def test_tasks_are_solved_by_what_solves_those_nearby():
  first, found = _fill(num_drawn=8)
  assert jnp.mean(found) > -0.015 > -0.5 > jnp.mean(first)
  _, by_chance = _fill(num_drawn=1)
  assert jnp.mean(found) > jnp.mean(by_chance) + 0.01
