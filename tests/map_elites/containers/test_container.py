"""Tests of what every container keeps to, whomever it keeps."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qdrl_haiku import map_elites

_SIZE, _WORST = 16, (-9.0, -9.0)
_GRID = map_elites.Grid((3, 2), (0.0, 0.0), (1.0, 1.0))
_NONE = map_elites.Unstructured(12, 2, _GRID)
_CONTAINERS = {
  "cells": map_elites.cells(_GRID), "low_spread": map_elites.low_spread(_GRID),
  "soft": map_elites.soft_cells(_GRID, 0.3, -9.0),
  "deep": map_elites.deep_archive(_GRID, map_elites.Resampling(depth=2), _SIZE),
  "mome": map_elites.mome(_GRID, 4, _WORST),
  "nsga2": map_elites.nsga2(_NONE, _WORST),
  "spea2": map_elites.spea2(_NONE, _WORST),
  "dominated_novelty": map_elites.dominated_novelty(_NONE),
  "threshold": map_elites.threshold_archive(_NONE)}
_ADD = {name: jax.jit(x.add) for name, x in _CONTAINERS.items()}
_ALL = pytest.mark.parametrize("name", list(_CONTAINERS))


def _batch(name, seed):
  """Individuals of few values, so that ties of all kinds abound."""
  rng = np.random.default_rng(seed)
  few = rng.integers(0, 3, (_SIZE, 6)).astype(np.float32) / 2
  few[6:9] = few[0]
  genotypes = rng.normal(size=(_SIZE, 2)).astype(np.float32)
  genotypes[8] = genotypes[7]
  known = {"objectives": few[:, 3:5], "spread": few[:, 5]}
  kept = {x: known[x].copy() for x in _CONTAINERS[name].keeps}
  return map_elites.Evaluated(
    genotypes, few[:, 0].copy(), few[:, 1:3].copy(), kept)


def _begun(name):
  """The contents after a first batch."""
  batch = _batch(name, 0)
  example = jax.tree.map(
    lambda x: jnp.asarray(x[0]), (batch.genotypes, batch.extra))
  return _ADD[name](_CONTAINERS[name].init(*example), batch)


@_ALL
def test_the_order_of_a_batch_changes_no_bit(name):
  first, new, expected = _begun(name), _batch(name, 1), None
  for seed in range(4):
    order = np.random.default_rng(seed).permutation(_SIZE)
    found = _ADD[name](first, jax.tree.map(lambda x, i=order: x[i], new))
    expected = expected or found
    jax.tree.map(np.testing.assert_array_equal, found, expected)


@_ALL
def test_what_is_not_finite_never_enters(name):
  first, new = _begun(name), _batch(name, 1)
  new.fitness[:3] = np.nan, np.inf, -np.inf
  new.descriptors[3:5, 0] = np.nan, np.inf
  new.genotypes[5, 1] = np.nan
  for x in new.extra.values():
    x[6] = np.nan
  shown = _CONTAINERS[name].show(_ADD[name](first, new))
  found = np.asarray(shown.genotypes)[np.asarray(shown.occupied)]
  assert np.isfinite(found).all()
  lost = new.genotypes[: 7 if new.extra else 6]
  assert not np.isin(found[:, 0], lost[:, 0]).any()
  nothing = new._replace(fitness=new.fitness * np.nan)
  before, after = (
    _CONTAINERS[name].show(x) for x in (first, _ADD[name](first, nothing)))
  for part in ("genotypes", "fitness", "descriptors"):
    np.testing.assert_array_equal(getattr(before, part), getattr(after, part))
