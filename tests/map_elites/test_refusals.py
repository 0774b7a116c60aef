"""Tests of what is refused, and of what a user is told to do instead."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qdrl_haiku import controllers, map_elites

_KEY = jax.random.key(0)
_GRID = map_elites.Grid((2, 3), (0.0, 0.0), (1.0, 1.0))
_GENOTYPE = {"tag": jnp.int32(0), "w": jnp.zeros((2, 3))}


def _init(genotype, tessellation=_GRID):
  return map_elites.Repertoire.init(genotype, tessellation)


def _add(**changes):
  batch = {
    "genotypes": jax.tree.map(lambda x: jnp.stack([x] * 4), _GENOTYPE),
    "fitness": jnp.zeros(4),
    "descriptors": jnp.zeros((4, 2)),
  }
  genotypes = batch["genotypes"] | changes.pop("leaves", {})
  _init(_GENOTYPE).add(**(batch | {"genotypes": genotypes} | changes))


def _add_what_init_was_given():
  batch = {"x": jnp.zeros((4, 2))}
  _init(batch).add(batch, jnp.zeros(4), jnp.zeros((4, 2)))


def _grid(shape=(3, 3), lower=(0.0, 0.0), upper=(1.0, 1.0)):
  map_elites.Grid(shape, lower, upper)


def _cvt(num_cells=4, lower=(0.0, 0.0), upper=(1.0, 1.0)):
  map_elites.cvt(_KEY, num_cells, lower, upper)


def _vary(x1, x2):
  map_elites.iso_line(_KEY, x1, x2, 1.0, 1.0)


def _weights_only(variation_fn, is_weight=None):
  x = {"params": jnp.ones(3), "count": jnp.ones(3)}
  map_elites.weights_only(variation_fn, is_weight)(_KEY, x, x)


def _pbt(controller=None, **settings):
  space = {"rate": controllers.LogUniform(0.1, 10.0)}
  settings = {
    "population_size": 6,
    "variation_batch_size": 3,
    "num_replaced_by_samples": 2,
  } | settings
  config = controllers.PBTConfig(**(controller or {}))
  map_elites.pbt_emitter(
    None, controllers.pbt(config, space), None, **settings
  )


def _multi(**batch_size):
  emitter = map_elites.genetic_emitter(lambda key, x1, x2: x1, 3)
  map_elites.multi_emitter({"a": emitter}, **batch_size)


def _cma_without_cells():
  strategies = map_elites.Strategies(*[None] * 5, 1, 8)
  emitter = map_elites.cma_emitter(lambda size: strategies, jnp.zeros(2))
  emitter.init(_KEY, _init(jnp.zeros(2), map_elites.Unstructured(8, 2)))


def _deep(num_cells, depth):
  map_elites.DeepArchive.init(
    map_elites.Resampling(depth=depth),
    1,
    map_elites.Grid((num_cells,), (0.0,), (1.0,)),
    None,
  )


_TWO = {"a": np.zeros(2), "b": np.zeros(3)}
_REFUSALS = [
  (_grid, {"shape": (3,)}, "not one count of cells for each of the 2 dim"),
  (_grid, {"shape": (3, 0)}, "shape=(3, 0) is not one count"),
  (_grid, {"shape": (3, 2.5)}, "use (10, 10), for example"),
  (_grid, {"shape": 3}, "is not one count"),
  (_grid, {"shape": (2**20, 2**20)}, "cells; use at most"),
  (_grid, {"upper": (1.0, 0.0)}, "not below"),
  (_cvt, {"lower": (0.0, 1.0)}, "not below"),
  (_grid, {"lower": (0.0, 1.0), "upper": (1.0, 1.0 + 1e-12)}, "not below"),
  (_grid, {"lower": (0.0,)}, "not one finite number"),
  (_cvt, {"lower": (0.0, np.nan)}, "not one finite number"),
  (_grid, {"upper": (1.0, 1e300)}, "not one finite number"),
  (_grid, {"lower": 0.0, "upper": 1.0}, "not one finite number"),
  (
    _grid,
    {"lower": (0, 1e8), "upper": (1, 1e8 + 16)},
    "narrower than float32 resolves",
  ),
  (_grid, {"shape": (3, 2**28)}, "use fewer cells, or shift"),
  (_cvt, {"num_cells": 0}, "num_cells=0 is not a count"),
  (_cvt, {"num_cells": True}, "num_cells=True is not a count"),
  (_cvt, {"num_cells": 60_000}, "use at most 50000, or a grid"),
  (map_elites.Unstructured, (0, 2), "num_cells=0 is not a count"),
  (
    map_elites.Unstructured,
    (4, 2, map_elites.Grid((2,), (0.0,), (1.0,))),
    "is of 1 dimensions, and",
  ),
  (_GRID.cell, (jnp.zeros(2),), "descriptors have shape (2,); give [B, 2]"),
  (_GRID.outside, (jnp.zeros((5, 3)),), "give [B, 2], one row per descriptor"),
  (_init, ({"a": jnp.zeros(2, jnp.complex64)},), "['a'] has dtype complex64"),
  (_init, ({"a": jnp.zeros(2, jnp.int4)},), "['a'] has dtype int4"),
  (_init, ({"a": _KEY},), "['a'] has dtype key"),
  (_init, ({"a": None},), "has no leaf"),
  (_add, {"fitness": jnp.zeros((4, 1))}, "fitness is float32(4, 1), not"),
  (_add, {"fitness": jnp.zeros(4, int)}, "fitness has dtype int32; convert to"),
  (_add, {"descriptors": jnp.zeros((4, 3))}, "and descriptors [B, 2]"),
  (_add, {"descriptors": jnp.zeros((4, 2), bool)}, "descriptors has dtype"),
  (_add, {"leaves": {"more": jnp.zeros(4)}}, "the tree is"),
  (_add, {"leaves": {"tag": jnp.zeros(3, int)}}, "tag is int32(3,), not"),
  (_add, {"leaves": {"tag": jnp.zeros(4)}}, "is float32(4,), not int32(4,)"),
  (
    _add_what_init_was_given,
    (),
    "give it its first: jax.tree.map(lambda x: x[0], genotypes)",
  ),
  (_vary, ({"a": np.zeros(2)}, {"b": np.zeros(2)}), "two trees of one str"),
  (_vary, (np.zeros((2, 3)), np.zeros((2, 1))), "x1 has shape (2, 3) and x2 "),
  (_vary, (_TWO, _TWO), "give both one row per offspring in every leaf"),
  (_weights_only, (lambda key, x1, x2: (x1,),), "return the tree that it is"),
  (_weights_only, (None, lambda path: False), "finds no weights in the"),
  (map_elites.genetic_emitter, (None, -1), "batch_size=-1 is not a count"),
  (map_elites.genetic_emitter, (None, True), "use an integer of at least 0"),
  (map_elites.multi_emitter, ({},), "there is no emitter; give one or more"),
  (_multi, {"batch_size": 2}, "emitter a makes 3 individuals, of which 2 may"),
  (_pbt, {"population_size": 0}, "at least 1, or genetic_emitter if no agent"),
  (_pbt, {"population_size": 2.0}, "population_size=2.0 is not a count"),
  (_pbt, {"variation_batch_size": -1}, "variation_batch_size=-1 is not a coun"),
  (_pbt, {"num_replaced_by_samples": -1}, "num_replaced_by_samples=-1 is not"),
  (_pbt, {"num_replaced_by_samples": 6}, "population_size=6; use at most 5"),
  (
    _pbt,
    {"controller": {"num_parents": 4, "num_replaced": 3}},
    "num_parents=4 and num_replaced=3",
  ),
  (map_elites.cma_es, (1025, 1, 8, 0.1), "use at most 1024, such as a policy"),
  (map_elites.cma_es, (3, 1, 1, 0.1), "population_size=1 is not a count"),
  (map_elites.cma_es, (3, 1, 8, 0.0), "step_size=0.0 must be finite and"),
  (_cma_without_cells, (), "by the cells that they improve, and"),
  (map_elites.Resampling, (0.0,), "share must be above 0"),
  (map_elites.Resampling, (1.0,), "share must be"),
  (map_elites.Resampling, (0.5, 0), "depth must be"),
  (_deep, (2**20, 2**11), "times 1048576 cells is more than 1073741824"),
]


@pytest.mark.parametrize(
  ("function", "arguments", "fragment"),
  _REFUSALS,
  ids=[fragment for *_, fragment in _REFUSALS],
)
def test_what_makes_no_sense_is_refused(function, arguments, fragment):
  if isinstance(arguments, dict):
    function, arguments = functools.partial(function, **arguments), ()
  with pytest.raises(ValueError) as caught:
    function(*arguments)
  assert fragment in str(caught.value)
