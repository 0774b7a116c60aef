"""Tests of several emitters that share a repertoire."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qdrl_haiku import map_elites, prng
from qdrl_haiku.map_elites.multi_emitter import shares

# An individual's genotype is its descriptor, and names its cell.
_GRID = map_elites.Grid((20,), (0.0,), (20.0,))
_KEY = jax.random.key(0)
_LENGTHS = np.zeros((8, 1), np.int32)


def _emitter(individuals, needs=()):
  """Makes the same individuals each time; its state is what it was told."""
  individuals = jnp.asarray(individuals, jnp.float32)[:, None]

  def tell(state, repertoire, evaluated, key):
    genotypes, fitness, _, extra = evaluated
    return {"fitness": fitness, "genotypes": genotypes[:, 0]} | extra

  return map_elites.Emitter(
    init=lambda key, repertoire: {
      "fitness": jnp.zeros(len(individuals)),
      "genotypes": jnp.zeros(len(individuals)),
    }
    | ({"lengths": _LENGTHS[: len(individuals)]} if needs else {})
    | {name: jnp.zeros(len(individuals)) for name in needs},
    ask=lambda state, repertoire, key: (individuals, state),
    tell=tell,
    batch_size=len(individuals),
    needs=needs,
    metrics=lambda state: {"size": jnp.float32(len(individuals))},
  )


def _empty():
  return map_elites.Repertoire.init(jnp.zeros(1), _GRID)


@functools.partial(jax.jit, static_argnums=(0, 3))
def _generation(emitter, repertoire, state, fitness, turn=0):
  """One generation, in which fitness is a function of genotype and turn."""

  def evaluate(genotypes, key):
    x = genotypes[:, 0]
    size = x.shape[0]
    extra = {"lengths": jnp.full((size, 1), 7), "transitions": 10 * x}
    return fitness(x, turn), genotypes, extra

  return map_elites.step(emitter, evaluate, repertoire, state, _KEY)


def _rising(x, turn):
  return x


def _turning(x, turn):
  return jnp.where(turn == 0, x, 9 - x)


def _rising_with_time(x, turn):
  return x + turn * (x > 3)


def _started(emitter, repertoire=None):
  repertoire = repertoire or _empty()
  state = jax.jit(emitter.init)(_KEY, repertoire)
  # As it is after a generation, so that the next is compiled once.
  return repertoire, state


def _two(**arguments):
  return map_elites.multi_emitter(
    {
      "a": _emitter([0.5, 1.5, 2.5], needs=("transitions",)),
      "b": _emitter([2.5, 3.5]),
    },
    **arguments,
  )


def test_each_is_told_of_its_own_individuals_and_what_it_needs():
  emitter = _two()
  assert emitter.batch_size == 5 and emitter.needs == ("transitions",)
  repertoire, state = _started(emitter)
  _, state = _generation(emitter, repertoire, state, _rising)
  first, second = state.states
  np.testing.assert_array_equal(first["fitness"], [0.5, 1.5, 2.5])
  np.testing.assert_array_equal(first["transitions"], [5, 15, 25])
  np.testing.assert_array_equal(first["lengths"], np.full((3, 1), 7))
  np.testing.assert_array_equal(second["genotypes"], [2.5, 3.5])
  assert second.keys() == {"fitness", "genotypes"}


def test_who_found_an_elite_is_known_until_another_finds_a_better_one():
  a, b = _emitter([0.5, 1.5]), _emitter([0.6, 2.5])
  emitter = map_elites.multi_emitter({"a": a, "b": b})
  repertoire = _empty().add(
    jnp.array([[1.6]]), jnp.array([9.0]), jnp.array([[1.6]])
  )
  repertoire, state = _started(emitter, repertoire)
  assert np.all(state.found_by == -1)
  repertoire, state = _generation(emitter, repertoire, state, _turning)
  # b's 0.6 is better than a's 0.5; nobody is better than the first one.
  np.testing.assert_array_equal(state.found_by[:4], [1, -1, 1, -1])
  repertoire, state = _generation(emitter, repertoire, state, _turning, 1)
  np.testing.assert_array_equal(state.found_by[:4], [0, -1, 1, -1])
  # The same once more improves nothing.
  before = state.improved
  _, state = _generation(emitter, repertoire, state, _turning, 1)
  np.testing.assert_allclose(state.improved, 0.9 * before)


def test_improvements_are_counted_and_fade():
  emitter = _two()
  repertoire, state = _started(emitter)
  turns = functools.partial(_generation, emitter)
  repertoire, state = turns(repertoire, state, _rising_with_time, 0)
  np.testing.assert_array_equal(state.evaluated, [3, 2])
  # A cell that both have found alike is the last one's.
  np.testing.assert_array_equal(state.improved, [2, 2])
  _, state = turns(repertoire, state, _rising_with_time, 1)
  np.testing.assert_allclose(state.evaluated, [0.9 * 3 + 3, 0.9 * 2 + 2])
  np.testing.assert_allclose(state.improved, [0.9 * 2, 0.9 * 2 + 1])


def test_numbers_of_each_are_called_after_it():
  emitter = _two()
  repertoire, state = _started(emitter)
  _, state = _generation(emitter, repertoire, state, _rising)
  assert {k: float(x) for k, x in emitter.metrics(state).items()} == {
    "a/size": 3, "a/share": pytest.approx(0.6), "a/num_elites": 2,
    "b/size": 2, "b/share": pytest.approx(0.4), "b/num_elites": 2,
  }  # fmt: skip


def test_of_adapting_shares_some_of_each_ones_individuals_are_evaluated():
  a = _emitter([0.5, 1.5, 2.5, 3.5], needs=("transitions",))
  b = _emitter([10.5, 11.5, 12.5, 13.5])
  emitter = map_elites.multi_emitter({"a": a, "b": b}, batch_size=4)
  assert emitter.batch_size == 4
  repertoire, state = _started(emitter)
  repertoire, state = _generation(emitter, repertoire, state, _rising)
  # Two of each at first, from all over what each one made.
  np.testing.assert_array_equal(
    np.flatnonzero(repertoire.occupied), [1, 3, 11, 13]
  )
  first, second = state.states
  np.testing.assert_array_equal(first["fitness"], [np.nan, 1.5, np.nan, 3.5])
  np.testing.assert_array_equal(first["lengths"][:, 0], [0, 7, 0, 7])
  np.testing.assert_array_equal(first["transitions"][1::2], [15, 35])
  np.testing.assert_array_equal(second["fitness"][1::2], [11.5, 13.5])


def test_shares_go_to_who_improved_more_lately():
  # a's are in one cell, and only the first one of them is an improvement.
  a = _emitter(np.full(8, 0.5))
  b = _emitter(np.arange(8) + 3.5)
  emitter = map_elites.multi_emitter({"a": a, "b": b}, batch_size=8)
  repertoire, state = _started(emitter)
  counts = []
  for i in range(4):
    repertoire, state = _generation(
      emitter, repertoire, state, _rising_with_time, i
    )
    counts.append(np.bincount(state.emitters, minlength=2).tolist())
  assert counts[0] == [4, 4]
  assert all(b > a for a, b in counts[1:])


def _expected_shares(evaluated, improved, size, c):
  """The same decisions in float64, one after the other."""
  counts = [0] * len(evaluated)
  for _ in range(size):
    n = [e + k for e, k in zip(evaluated, counts, strict=True)]
    bounds = [
      m / max(e, 1) + c * math.sqrt(math.log(max(sum(n), 1)) / x)
      if x
      else math.inf
      for m, e, x in zip(improved, evaluated, n, strict=True)
    ]
    counts[bounds.index(max(bounds))] += 1
  return counts


@pytest.mark.parametrize(
  "evaluated, improved",
  [([0, 0, 0], [0, 0, 0]), ([30, 20, 10], [3, 9, 1]), ([9, 0, 9], [5, 0, 1])],
)
@pytest.mark.parametrize("exploration", [0.0, 0.3])
def test_shares_are_those_of_the_greatest_upper_bounds(
  evaluated, improved, exploration
):
  counts = shares(
    jnp.float32(evaluated), jnp.float32(improved), 17, exploration
  )
  expected = _expected_shares(evaluated, improved, 17, exploration)
  np.testing.assert_array_equal(counts, expected)


@pytest.mark.parametrize("is_multiple", [False, True])
def test_who_can_use_the_first_individuals_is_told_of_all(is_multiple):
  def tell_first(state, repertoire, evaluated, key):
    total = jnp.sum(evaluated.genotypes) + evaluated.extra["lengths"]
    return state + total, key

  deaf = _emitter([0.5])
  hearing = deaf._replace(
    init=lambda key, repertoire: jnp.zeros(()), tell_first=tell_first
  )
  emitter = map_elites.together(deaf, hearing)
  if is_multiple:
    emitter = map_elites.multi_emitter({"a": deaf, "b": hearing})
  x = jnp.array([[1.5], [2.5], [3.5]])
  evaluated = map_elites.Evaluated(x, x[:, 0], x, {"lengths": 10})
  _, state = map_elites.init(emitter, _GRID, evaluated, _KEY)
  _, (total, key) = state.states if is_multiple else state
  assert total == 17.5
  told = jax.random.fold_in(_KEY, prng.OfGeneration.TELL)
  assert key == jax.random.fold_in(told, 1)
  assert deaf.tell_first is None
  assert map_elites.together(deaf).tell_first is None


def test_mixtures_that_make_no_sense_are_refused():
  with pytest.raises(ValueError, match="there is no emitter; give one"):
    map_elites.multi_emitter({})
  with pytest.raises(ValueError, match="emitter a makes 3 individuals, of w"):
    _two(batch_size=2)
