"""Tests of several emitters that share a repertoire."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qdrl_haiku import map_elites, prng
from qdrl_haiku.map_elites.emitters.multi import multi_emitter_shares

# An individual's genotype is its descriptor, and names its cell.
_GRID = map_elites.Grid((20,), (0.0,), (20.0,))
_KEY = jax.random.key(0)


def _emitter(individuals, needs=()):
  """Makes the same individuals each time; its state is what it was told."""
  individuals = jnp.asarray(individuals, jnp.float32)[:, None]
  size = len(individuals)
  first = dict.fromkeys(("begun", "asked", "told"), _KEY)
  first |= {"fitness": jnp.zeros(size), "genotypes": individuals}
  if needs:
    first |= {"lengths": jnp.zeros((size, 1), jnp.int32)}
    first |= {name: jnp.zeros(size) for name in needs}

  def tell(state, repertoire, evaluated, key):
    told = {"fitness": evaluated.fitness, "genotypes": evaluated.genotypes}
    return state | told | evaluated.extra | {"told": key}

  return map_elites.Emitter(
    init=lambda key, repertoire: first | {"begun": key},
    ask=lambda state, repertoire, key: (individuals, state | {"asked": key}),
    tell=tell, batch_size=size, needs=needs,
    metrics=lambda state: {"size": jnp.float32(size)})


@functools.partial(jax.jit, static_argnums=0)
def _generation(emitter, repertoire, state, fitness):
  """One generation, of individuals [B] of that fitness."""

  def evaluate(genotypes, key):
    lengths = jnp.full((emitter.batch_size, 1), 7)
    extra = {"lengths": lengths, "transitions": 10 * genotypes[:, 0]}
    return fitness, genotypes, extra

  key = jax.random.fold_in(_KEY, 1)
  return map_elites.step(
    emitter, _CELLS, evaluate, repertoire, state, key)


_CELLS = map_elites.cells(_GRID)
_init = jax.jit(lambda emitter, repertoire: emitter.init(_KEY, repertoire),
                static_argnums=0)
_ADD = jax.jit(map_elites.Repertoire.add)
_EMPTY = _CELLS.init(
  jnp.zeros(1), {"emitter": jnp.int32(0), "turn": jnp.int32(0)})
_X = np.float32([0.5, 1.5, 2.5, 2.5, 0.6])
_TWO = map_elites.multi_emitter(
  {"a": _emitter(_X[:3], needs=("transitions",)), "b": _emitter(_X[3:])})


def test_each_is_told_of_its_own_individuals_and_what_it_needs():
  assert _TWO.batch_size == 5 and _TWO.needs == ("transitions",)
  repertoire, state = _generation(_TWO, _EMPTY, _init(_TWO, _EMPTY), _X)
  first, second = state.states
  np.testing.assert_array_equal(first["fitness"], [0.5, 1.5, 2.5])
  np.testing.assert_array_equal(first["transitions"], [5, 15, 25])
  np.testing.assert_array_equal(first["lengths"], np.full((3, 1), 7))
  np.testing.assert_array_equal(second["genotypes"], _X[3:, None])
  assert "transitions" not in second and "lengths" not in second
  # What both have found alike is the first one's.
  assert {k: float(x) for k, x in _TWO.metrics(state).items()} == {
    "a/size": 3, "a/share": pytest.approx(0.6), "a/num_elites": 2,
    "b/size": 2, "b/share": pytest.approx(0.4), "b/num_elites": 1}
  # No two draw from one key, nor one twice.
  keys = [x[use] for x in state.states for use in ("begun", "asked", "told")]
  assert len({tuple(jax.random.key_data(x).tolist()) for x in keys}) == 6
  # Improvements are counted, and fade.
  np.testing.assert_array_equal(state.evaluated, [3, 2])
  np.testing.assert_array_equal(state.improved, [2, 1])
  _, state = _generation(_TWO, repertoire, state, np.maximum(_X, _X**2))
  np.testing.assert_allclose(state.evaluated, [0.9 * 3 + 3, 0.9 * 2 + 2])
  np.testing.assert_allclose(state.improved, [0.9 * 2 + 2, 0.9])


def test_an_elite_is_its_finders_until_another_finds_a_better_one():
  first = np.float32([[1.6]])
  nobody = {name: jnp.zeros(1, jnp.int32) for name in _EMPTY.extras}
  repertoire = _ADD(_EMPTY, first, np.float32([9.0]), first, nobody)
  state = _init(_TWO, repertoire)
  repertoire, state = _generation(_TWO, repertoire, state, _X)
  # b's 0.6 is better than a's 0.5; none is better than the first one.
  np.testing.assert_array_equal(repertoire.extras["emitter"][:4], [2, 0, 1, 0])
  repertoire, state = _generation(_TWO, repertoire, state, 9 - _X)
  np.testing.assert_array_equal(repertoire.extras["emitter"][:4], [1, 0, 1, 0])
  # The same once more improves nothing.
  before = state.improved
  _, state = _generation(_TWO, repertoire, state, 9 - _X)
  np.testing.assert_allclose(state.improved, 0.9 * before)


@pytest.mark.parametrize("batch_size", [None, 3])
def test_what_one_keeps_with_its_individuals_is_kept(batch_size):
  a, b = (
    _emitter(10 * i + _X[:3])._replace(
      extras=lambda state, name=name: {name: 1 + state["genotypes"][:, 0]})
    for i, name in enumerate("ab"))
  emitter = map_elites.multi_emitter({"a": a, "b": b}, batch_size)
  individuals, state = jax.jit(emitter.ask)(
    _init(emitter, _EMPTY), _EMPTY, _KEY)
  kept = emitter.extras(state)
  assert {*kept} == {"emitter", "turn", "a", "b"}
  is_first = kept["emitter"] == 1
  for name, is_own in (("a", is_first), ("b", ~is_first)):
    assert is_own.any()
    np.testing.assert_array_equal(
      kept[name], np.where(is_own, 1 + individuals[:, 0], 0))


def test_of_adapting_shares_some_of_each_ones_individuals_are_evaluated():
  # a's are in one cell, and only the first one of them is an improvement.
  a = _emitter([0.5] * 4, needs=("transitions",))
  b = _emitter([10.5, 11.5, 12.5, 13.5])
  emitter = map_elites.multi_emitter({"a": a, "b": b}, batch_size=4)
  assert emitter.batch_size == 4
  fitness = np.float32([0.5, 0.5, 11.5, 13.5])
  repertoire, state = _generation(
    emitter, _EMPTY, _init(emitter, _EMPTY), fitness)
  # Two of each at first, from all over what each one made.
  assert np.flatnonzero(repertoire.occupied).tolist() == [0, 11, 13]
  first, second = state.states
  np.testing.assert_array_equal(first["fitness"], [np.nan, 0.5, np.nan, 0.5])
  np.testing.assert_array_equal(first["lengths"][:, 0], [0, 7, 0, 7])
  np.testing.assert_array_equal(first["transitions"][1::2], [5, 5])
  np.testing.assert_array_equal(second["fitness"][1::2], [11.5, 13.5])
  _, state = _generation(emitter, repertoire, state, fitness)
  # The share of the one that improves more grows.
  assert np.bincount(state.emitters, minlength=2)[1] > 2


def _expected_shares(evaluated, improved, size, c):
  """The same decisions in float64, one after the other."""
  counts = [0] * len(evaluated)
  for _ in range(size):
    n = [e + k for e, k in zip(evaluated, counts, strict=True)]
    bounds = [
      m / max(e, 1) + c * math.sqrt(math.log(max(sum(n), 1)) / x)
      if x
      else math.inf
      for m, e, x in zip(improved, evaluated, n, strict=True)]
    counts[bounds.index(max(bounds))] += 1
  return counts


def test_shares_are_those_of_the_greatest_upper_bounds():
  counted = jax.jit(multi_emitter_shares, static_argnums=2)
  for evaluated, improved, c in (
    ([0, 0, 0], [0, 0, 0], 0.3),
    ([30, 20, 10], [3, 9, 1], 0.0),
    ([9, 0, 9], [5, 0, 1], 0.3),
  ):
    counts = counted(jnp.float32(evaluated), jnp.float32(improved), 17, c)
    expected = _expected_shares(evaluated, improved, 17, c)
    np.testing.assert_array_equal(counts, expected)


def test_the_first_individuals_are_told_to_those_that_use_them():
  deaf = _emitter([0.5])
  hearing = deaf._replace(
    init=lambda key, repertoire: jnp.zeros(()),
    tell_first=lambda state, repertoire, evaluated, key: (
      state + evaluated.genotypes.sum() + evaluated.extra["lengths"], key))
  emitter = map_elites.multi_emitter({"a": deaf, "b": hearing})
  x = np.float32([[1.5], [2.5], [3.5]])
  evaluated = map_elites.Evaluated(x, x[:, 0], x, {"lengths": 10})
  _, state = jax.jit(lambda x: map_elites.init(emitter, _CELLS, x, _KEY))(
    evaluated)
  told = jax.random.fold_in(_KEY, prng.OfGeneration.TELL)
  assert state.states[1] == (17.5, jax.random.fold_in(told, 1))


def test_more_individuals_than_can_be_shared_exactly_are_refused():
  with pytest.raises(ValueError, match="40000 individuals are too many .* num"):
    map_elites.multi_emitter({"a": _emitter(_X)}, batch_size=40_000)
