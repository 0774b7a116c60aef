"""Tests of cells with soft thresholds."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qdrl_haiku import map_elites
from qdrl_haiku.map_elites.containers.soft_cells import THRESHOLD

_GRID = map_elites.Grid((4,), (0.0,), (4.0,))
_RATE, _LEAST = 0.3, -2.0
_SOFT = map_elites.soft_cells(_GRID, _RATE, _LEAST)
_BEST = map_elites.cells(_GRID)
_add = jax.jit(_SOFT.add)


def _evaluated(fitness, descriptors):
  fitness = jnp.float32(fitness)
  return map_elites.Evaluated(
    jnp.arange(fitness.size), fitness, jnp.float32(descriptors)[:, None], {})


def _empty(container=_SOFT):
  return container.init(jnp.int32(0), {})


def _plain(batches):
  """The paper's rule, batch by batch and cell by cell, in float64."""
  thresholds = np.full(4, _LEAST)
  for fitness, descriptors in batches:
    cells = np.clip(np.floor(descriptors), 0, 3)
    before = thresholds.copy()
    for cell in range(4):
      known = np.isfinite(fitness) & (cells == cell)
      exceeding = fitness[known & (fitness > before[cell])]
      kept = (1 - _RATE) ** exceeding.size
      if exceeding.size:
        thresholds[cell] *= kept
        thresholds[cell] += (1 - kept) * exceeding.mean()
  return thresholds


def _batches():
  rng = np.random.default_rng(0)
  batches = rng.normal(size=(6, 2, 32))
  batches[:, 1] = 4 * rng.uniform(size=(6, 32))
  batches[2, 0, ::3] = np.nan
  batches[3, 0, ::5] = -np.inf
  batches[4, 0] = -3.0  # Nobody exceeds a threshold.
  return batches


def test_thresholds_are_those_of_a_plain_loop_and_the_best_are_shown():
  state, best = _empty(), _empty(_BEST)
  batches = _batches()
  for i, batch in enumerate(batches):
    state = _add(state, _evaluated(*batch))
    best = jax.jit(_BEST.add)(best, _evaluated(*batch))
    shown = _SOFT.show(state)
    np.testing.assert_allclose(
      shown.extras[THRESHOLD], _plain(batches[: i + 1]), rtol=1e-5)
    for name in ("fitness", "descriptors", "genotypes"):
      np.testing.assert_array_equal(getattr(shown, name), getattr(best, name))


@pytest.mark.parametrize(("rate", "expected"), [(0.0, _LEAST), (1.0, 4.0)])
def test_a_rate_of_0_never_moves_and_one_of_1_takes_the_mean(rate, expected):
  soft = map_elites.soft_cells(_GRID, rate, _LEAST)
  state = jax.jit(soft.add)(_empty(soft), _evaluated([3.0, 5.0], [0.5, 0.5]))
  np.testing.assert_array_equal(
    state.extras[THRESHOLD], [expected, *[_LEAST] * 3])
