"""Tests of the emitter that is a population of training agents."""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from qdrl_haiku import map_elites, prng

_NAN, _INF = math.nan, math.inf
_GRID = map_elites.Grid((8,), (0.0,), (8.0,))
_OCCUPIED = (1, 2, 6)
_SELF = (0, 1, 2, 3, 4, 5)
_USES = ("init", "train", "inherit", "transplant")


def _record(members, use, keys):
  """The members with the keys that they were given, for the tests to see."""
  return members | {"keys": members["keys"] | {use: jax.random.key_data(keys)}}


def _agents():
  """Agents that are two numbers each; member i begins at (10 i, i)."""

  def init(keys):
    size = keys.shape[0]
    i = jnp.arange(size, dtype=jnp.float32)
    blank = {use: jnp.zeros((size, 2), jnp.uint32) for use in _USES}
    members = {"x": jnp.stack([10 * i, i], axis=1), "keys": blank}
    return _record(members, "init", keys)

  def train(members, hyperparams, keys):
    # Walks by the rate, and diverges where that is big.
    rate = hyperparams["rate"]
    x = members["x"] + jnp.stack([rate, 0 * rate], axis=1)
    x = x.at[:, 1].set(jnp.where(rate > 1000, jnp.nan, x[:, 1]))
    return _record(members, "train", keys) | {"x": x}, {"speed": 2 * rate}

  def inherit(members, parents, keys):
    members = _record(members, "inherit", keys)
    return members | {"x": members["x"][parents]}

  def transplant(members, genotypes, where, keys):
    members = _record(members, "transplant", keys)
    x = jnp.where(where[:, None], genotypes, members["x"])
    return members | {"x": x}

  return map_elites.Agents(
    init=init,
    train=train,
    genotypes=lambda members: members["x"],
    inherit=inherit,
    transplant=transplant,
    is_finite=lambda members: jnp.all(jnp.isfinite(members["x"]), axis=1),
  )


class _Decision(NamedTuple):
  parents: Any
  hyperparams: Any
  operator: Any


class _Preset(NamedTuple):
  """Decides for the parents in its state; children go at twice the rate."""

  init: Callable
  update: Callable


def _decide(state, key, fitness, hyperparams):
  parents, rate = state["parents"], hyperparams["rate"]
  assert fitness.shape == parents.shape
  replaced = parents != jnp.arange(parents.size)
  return state | {"count": state["count"] + 1}, _Decision(
    parents,
    {
      "rate": jnp.where(replaced, 2 * rate[parents], rate),
      "draw": jax.random.uniform(key, parents.shape),
    },
    jnp.where(replaced, 2, 0),
  )


_PRESET = _Preset(
  lambda key, size: (
    {"count": jnp.int32(0), "parents": jnp.arange(size, dtype=jnp.int32)},
    {"rate": jnp.arange(1.0, 1.0 + size), "draw": jnp.zeros(size)},
  ),
  _decide,
)


def _add_halves(key, x1, x2):
  """Offspring that tell their parents; hyperparameters are the first's."""
  del key
  return map_elites.Elite(x1.genotype + x2.genotype / 2, x1.hyperparams)


@functools.cache
def _emitter(controller=_PRESET, variation_fn=_add_halves, **settings):
  """The emitter, with functions that are compiled once."""
  settings = {
    "population_size": 6,
    "variation_batch_size": 3,
    "num_replaced_by_samples": 2,
  } | settings
  emitter = map_elites.pbt_emitter(
    _agents(), controller, variation_fn, **settings
  )
  return emitter._replace(
    init=jax.jit(emitter.init),
    ask=jax.jit(emitter.ask),
    tell=jax.jit(emitter.tell),
  )


@functools.cache
def _repertoire(cells=_OCCUPIED, names=("draw", "rate")):
  """Elites ((100 c, c), rate c + 0.5) in the cells c."""
  example = map_elites.Elite(jnp.zeros(2), dict.fromkeys(names, jnp.zeros(())))
  repertoire = map_elites.Repertoire.init(example, _GRID)
  c = np.float32(cells)
  elites = map_elites.Elite(
    np.stack([100 * c, c], axis=1), dict.fromkeys(names, c + 0.5)
  )
  return repertoire.add(elites, 0 * c, c[:, None] + 0.5)


def _init(emitter, parents=None, repertoire=None):
  state = emitter.init(jax.random.key(0), repertoire or _repertoire())
  if parents is None:
    return state
  preset = state.controller | {"parents": jnp.int32(parents)}
  return state._replace(controller=preset)


def _tell(emitter, state, fitness, repertoire=None, seed=7):
  """Tells the members' fitness, and that all variations are far fitter."""
  rest = [1e6] * (emitter.batch_size - len(fitness))
  evaluated = map_elites.Evaluated(
    None, np.float32([*fitness, *rest]), None, {}
  )
  key = jax.random.key(seed)
  repertoire = repertoire or _repertoire()
  return jax.device_get(emitter.tell(state, repertoire, evaluated, key))


@pytest.mark.parametrize(
  "parents, fitness, number, by_samples",
  [
    # The worst, 1, is the best one's child; then come 3 and 5.
    ((0, 2, 2, 3, 4, 5), (4, 0, 5, 1, 3, 2), 2, {3, 5}),
    # A parent stays, however bad it is.
    ((0, 3, 2, 3, 4, 5), (4, 0, 5, 1, 3, 2), 2, {5, 4}),
    # Ties: the lower index ranks higher, as for controllers.
    (_SELF, (1, 1, 1, 1, 1, 1), 2, {4, 5}),
    (_SELF, (1, 0, 0, 1, 0, 1), 2, {2, 4}),
    # All but the best, be it a parent or not.
    (_SELF, (4, 0, 5, 1, 3, 2), 5, {0, 1, 3, 4, 5}),
    ((0, 0, 2, 3, 4, 5), (4, 0, 5, 1, 3, 2), 5, {3, 4, 5}),
    # Fewer remain than are to be replaced.
    ((2, 2, 2, 2, 2, 5), (4, 0, 5, 1, 3, 2), 5, {5}),
    # A member that is not finite is the worst.
    ((0, 2, 2, 3, 4, 5), (_NAN, 0, 5, 1, 3, _INF), 2, {0, 5}),
    ((0, 2, 2, 3, 4, 5), (4, -_INF, 5, _NAN, 3, 2), 2, {3, 5}),
    # None is finite, so there is no best one to keep.
    (_SELF, (_NAN,) * 6, 2, {4, 5}),
    (_SELF, (_NAN, _INF, -_INF, _NAN, _NAN, _NAN), 5, {1, 2, 3, 4, 5}),
  ],
)
def test_the_worst_are_replaced_by_samples(
  parents, fitness, number, by_samples
):
  emitter = _emitter(num_replaced_by_samples=number)
  before = _init(emitter, parents)
  after = _tell(emitter, before, fitness)
  before = jax.device_get(before)
  assert set(np.flatnonzero(after.sampled_cells >= 0)) == by_samples
  for i, parent in enumerate(parents):
    cell = after.sampled_cells[i]
    if i in by_samples:
      # As the elite was stored, hyperparameters too.
      assert cell in _OCCUPIED
      expected = [100 * cell, cell], cell + 0.5
    else:
      assert cell == -1
      rate = i + 1 if parent == i else 2 * (parent + 1)
      expected = before.members["x"][parent], rate
    np.testing.assert_array_equal(after.members["x"][i], expected[0])
    assert after.hyperparams["rate"][i] == expected[1]


def test_the_decision_and_what_it_was_made_on_are_recorded():
  emitter = _emitter()
  state = _init(emitter, (0, 2, 2, 3, 4, 5))
  after = _tell(emitter, state, (4, 0, 5, _INF, _NAN, 2))
  key = jax.random.fold_in(jax.random.key(7), prng.OfGeneration.CONTROLLER)
  remembered, decided = _decide(
    state.controller, key, np.zeros(6), state.hyperparams
  )
  jax.tree.map(np.testing.assert_array_equal, after.decision, decided)
  assert after.controller["count"] == remembered["count"] == 1
  np.testing.assert_array_equal(after.fitness, [4, 0, 5, _INF, _NAN, 2])


def test_members_that_are_not_finite_have_fitness_nan():
  emitter = _emitter()
  state = _init(emitter)
  x = state.members["x"].at[2, 1].set(_NAN).at[4, 0].set(-_INF)
  state = state._replace(members=state.members | {"x": x})
  after = _tell(emitter, state, (1, 2, 3, 4, 5, 6))
  np.testing.assert_array_equal(after.fitness, [1, 2, _NAN, 4, _NAN, 6])
  assert set(np.flatnonzero(after.sampled_cells >= 0)) == {2, 4}
  assert np.all(np.isfinite(after.members["x"]))


def test_an_empty_repertoire_replaces_no_member():
  emitter = _emitter()
  state = _init(emitter, (0, 2, 2, 3, 4, 5))
  after = _tell(emitter, state, (4, 0, 5, 1, 3, 2), _repertoire(()))
  np.testing.assert_array_equal(after.sampled_cells, [-1] * 6)
  np.testing.assert_array_equal(after.hyperparams["rate"], [1, 6, 3, 4, 5, 6])


def test_samples_are_drawn_independently_and_uniformly():
  emitter, repertoire = _emitter(), _repertoire()
  state = _init(emitter)
  evaluated = map_elites.Evaluated(None, jnp.arange(9.0), None, {})
  keys = jax.random.split(jax.random.key(0), 1800)
  drawn = jax.jit(
    jax.vmap(
      lambda key: emitter.tell(state, repertoire, evaluated, key).sampled_cells
    )
  )(keys)[:, :2]
  pairs, counts = np.unique(drawn, axis=0, return_counts=True)
  np.testing.assert_array_equal(
    pairs, [[a, b] for a in _OCCUPIED for b in _OCCUPIED]
  )
  assert stats.chisquare(counts).pvalue > 1e-3


def test_at_first_all_members_stay_and_nothing_has_been_measured():
  state = _init(_emitter())
  np.testing.assert_array_equal(state.decision.parents, _SELF)
  np.testing.assert_array_equal(state.decision.operator, [0] * 6)
  jax.tree.map(
    np.testing.assert_array_equal,
    state.decision.hyperparams,
    state.hyperparams,
  )
  np.testing.assert_array_equal(state.sampled_cells, [-1] * 6)
  assert np.all(np.isnan(state.fitness)) and state.metrics == {}
  # The same array twice could not be donated.
  leaves = jax.tree.leaves(state)
  assert len({x.unsafe_buffer_pointer() for x in leaves}) == len(leaves)


def test_ask_trains_the_members_and_returns_them_first():
  emitter = _emitter()
  state = _init(emitter)
  elites, after = emitter.ask(state, _repertoire(), jax.random.key(1))
  assert emitter.batch_size == 9 and elites.genotype.shape == (9, 2)
  np.testing.assert_array_equal(elites.genotype[:6, 0], [1, 12, 23, 34, 45, 56])
  np.testing.assert_array_equal(elites.genotype[:6], after.members["x"])
  np.testing.assert_array_equal(elites.hyperparams["rate"][:6], range(1, 7))
  np.testing.assert_array_equal(after.metrics["speed"], range(2, 14, 2))
  jax.tree.map(
    np.testing.assert_array_equal, after.hyperparams, state.hyperparams
  )


def test_variations_have_parents_in_occupied_cells_or_among_members():
  emitter = _emitter(variation_batch_size=3600)
  state = _init(emitter)
  elites, _ = emitter.ask(state, _repertoire(), jax.random.key(1))
  # The offspring of cells a and b is a + b / 2, with a's rate.
  first = np.asarray(elites.hyperparams["rate"][6:]) - 0.5
  second = 2 * (np.asarray(elites.genotype[6:, 1]) - first)
  pairs, counts = np.unique(
    np.stack([first, second], axis=1), axis=0, return_counts=True
  )
  np.testing.assert_array_equal(
    pairs, [[a, b] for a in _OCCUPIED for b in _OCCUPIED]
  )
  assert stats.chisquare(counts).pvalue > 1e-3
  # While the repertoire is empty, those of members vary.
  elites, after = emitter.ask(state, _repertoire(()), jax.random.key(1))
  members = np.asarray(elites.hyperparams["rate"][6:]).astype(int) - 1
  assert set(members) == set(_SELF)
  own = np.asarray(after.members["x"])
  halves = 2 * (np.asarray(elites.genotype[6:]) - own[members])
  assert {tuple(row) for row in halves} == {tuple(row) for row in own}


def test_there_may_be_no_variations_and_no_samples():
  emitter = map_elites.pbt_emitter(
    _agents(), _PRESET, None, population_size=6, variation_batch_size=0,
    num_replaced_by_samples=0,
  )  # fmt: skip
  state = _init(emitter)
  elites, state = emitter.ask(state, _repertoire(), jax.random.key(1))
  assert emitter.batch_size == 6 and elites.genotype.shape == (6, 2)
  after = _tell(emitter, state, range(6))
  np.testing.assert_array_equal(after.sampled_cells, [-1] * 6)
  np.testing.assert_array_equal(after.members["x"], state.members["x"])


@functools.cache
def _used_keys(size):
  """All keys that the members got when every call has the same key."""
  emitter = _emitter(population_size=size)
  state = _init(emitter)
  _, state = emitter.ask(state, _repertoire(), jax.random.key(0))
  state = _tell(emitter, state, range(size), seed=0)
  return jax.device_get(state.members["keys"])


def test_a_members_keys_depend_on_its_number_alone_and_are_never_shared():
  small, large = _used_keys(3), _used_keys(6)
  for use in _USES:
    np.testing.assert_array_equal(small[use], large[use][:3])
  expected = [jax.random.fold_in(jax.random.key(0), i) for i in range(6)]
  for use in ("init", "train"):
    np.testing.assert_array_equal(
      large[use], [jax.random.key_data(key) for key in expected]
    )
  keys = [tuple(key) for use in _USES[1:] for key in large[use]]
  assert len(set(keys)) == 3 * 6


def test_a_repertoire_of_something_else_is_refused():
  elite = map_elites.Elite(
    jnp.zeros(3), {"rate": jnp.zeros(()), "draw": jnp.zeros(())}
  )
  for example in (jnp.zeros(2), elite):
    repertoire = map_elites.Repertoire.init(example, _GRID)
    with pytest.raises(ValueError, match="doesn't hold .* one Elite"):
      _init(_emitter(), repertoire=repertoire)


def test_fitness_must_be_of_all_that_was_asked():
  evaluated = map_elites.Evaluated(None, np.zeros(6), None, {})
  with pytest.raises(ValueError, match=r"fitness has shape \(6,\); give \(9,"):
    _emitter().tell(
      _init(_emitter()), _repertoire(), evaluated, jax.random.key(0)
    )
