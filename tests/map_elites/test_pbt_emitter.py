"""Tests of the emitter that is a population of training agents."""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies
from scipy import stats

from qdrl_haiku import controllers, map_elites
from tests.controllers import common as controllers_common

_NAN, _INF = math.nan, math.inf
_GRID = map_elites.Grid((8,), (0.0,), (8.0,))
_OCCUPIED = (1, 2, 6)


def _train(members, hyperparams, keys):
  """Walks by the rate; the second number diverges where the rate is big."""
  rate = hyperparams["rate"]
  x = members["x"] + jnp.stack([rate, 0 * rate], axis=1)
  x = x.at[:, 1].set(jnp.where(rate > 1000, jnp.nan, x[:, 1]))
  return _record(members, "train", keys) | {"x": x}, {"speed": 2 * rate}


def _record(members, use, keys):
  """The members with the keys that they were given, for the tests to see."""
  return members | {"keys": members["keys"] | {use: jax.random.key_data(keys)}}


def _agents():
  """Agents that are two numbers each; member i begins at (10 i, i)."""

  def init(keys):
    i = jnp.arange(keys.shape[0], dtype=jnp.float32)
    blank = {
      use: jnp.zeros((keys.shape[0], 2), jnp.uint32)
      for use in ("train", "inherit", "transplant")
    }
    members = {"x": jnp.stack([10 * i, i], axis=1), "keys": blank}
    return _record(members, "init", keys)

  def inherit(members, parents, keys):
    members = _record(members, "inherit", keys)
    return members | {"x": members["x"][parents]}

  def transplant(members, genotypes, where, keys):
    members = _record(members, "transplant", keys)
    x = jnp.where(where[:, None], genotypes, members["x"])
    return members | {"x": x}

  return map_elites.Agents(
    init=init,
    train=_train,
    genotypes=lambda members: members["x"],
    inherit=inherit,
    transplant=transplant,
    is_finite=lambda members: jnp.all(jnp.isfinite(members["x"]), axis=1),
  )


class _Decision(NamedTuple):
  parents: Any
  hyperparams: Any
  operator: Any


class _Controller(NamedTuple):
  init: Callable
  update: Callable


def _preset(parents):
  """A controller that always decides the same; children go at twice the rate.

  Its hyperparameters are a rate, 1, 2, ..., and a number drawn from its key.
  """
  parents = np.asarray(parents, np.int32)
  replaced = parents != np.arange(len(parents))

  def init(key, population_size):
    del key
    rate = jnp.arange(1.0, 1.0 + population_size)
    # Remembers how often it was asked.
    hyperparams = {"rate": rate, "draw": jnp.zeros(population_size)}
    return jnp.zeros((), jnp.int32), hyperparams

  def update(state, key, fitness, hyperparams):
    assert fitness.shape == parents.shape
    rate = hyperparams["rate"]
    return state + 1, _Decision(
      jnp.asarray(parents),
      {
        "rate": jnp.where(replaced, 2 * rate[parents], rate),
        "draw": jax.random.uniform(key, parents.shape),
      },
      jnp.where(replaced, 2, 0),
    )

  return _Controller(init, update)


def _add_halves(key, x1, x2):
  """Offspring that tell their parents; hyperparameters are the first's."""
  del key
  return map_elites.Elite(x1.genotype + x2.genotype / 2, x1.hyperparams)


def _emitter(
  parents=tuple(range(6)), controller=None, variation_fn=_add_halves, **settings
):
  settings = {
    "population_size": len(parents),
    "variation_batch_size": 3,
    "num_replaced_by_samples": 2,
  } | settings
  return map_elites.pbt_emitter(
    _agents(), controller or _preset(parents), variation_fn, **settings
  )


@functools.cache
def _repertoire(cells=_OCCUPIED, names=("draw", "rate")):
  """Elites ((100 c, c), rate c + 0.5) in the cells c."""
  example = map_elites.Elite(jnp.zeros(2), dict.fromkeys(names, jnp.zeros(())))
  repertoire = map_elites.Repertoire.init(example, _GRID)
  if not cells:
    return repertoire
  c = np.float32(cells)
  elites = map_elites.Elite(
    np.stack([100 * c, c], axis=1), dict.fromkeys(names, c + 0.5)
  )
  add = jax.jit(map_elites.Repertoire.add)
  return add(repertoire, elites, 0 * c, c[:, None] + 0.5)


def _tell(emitter, state, fitness, repertoire=None, seed=7):
  """Tells the members' fitness, and that all variations are far fitter."""
  fitness = np.append(
    np.float32(fitness), [1e6] * (emitter.batch_size - len(fitness))
  )
  return jax.device_get(
    emitter.tell(
      state,
      _repertoire() if repertoire is None else repertoire,
      map_elites.Evaluated(None, fitness, None, {}),
      jax.random.key(seed),
    )
  )


def _init(emitter, repertoire=None, seed=0):
  repertoire = _repertoire() if repertoire is None else repertoire
  return emitter.init(jax.random.key(seed), repertoire)


_SELF = (0, 1, 2, 3, 4, 5)


@pytest.mark.parametrize(
  "parents, fitness, number, by_samples",
  [
    # The worst, 1, is the best one's child; then come 3 and 5.
    ((0, 2, 2, 3, 4, 5), (4, 0, 5, 1, 3, 2), 2, {3, 5}),
    ((0, 2, 2, 3, 4, 5), (4, 0, 5, 1, 3, 2), 0, set()),
    # A parent stays, however bad it is.
    ((0, 3, 2, 3, 4, 5), (4, 0, 5, 1, 3, 2), 2, {5, 4}),
    # Ties: the lower index ranks higher, as for controllers.
    (_SELF, (1, 1, 1, 1, 1, 1), 2, {4, 5}),
    (_SELF, (1, 0, 0, 1, 0, 1), 2, {2, 4}),
    # All but the best, be it a parent or not.
    (_SELF, (4, 0, 5, 1, 3, 2), 5, {0, 1, 3, 4, 5}),
    ((0, 0, 2, 3, 4, 5), (4, 0, 5, 1, 3, 2), 5, {3, 4, 5}),
    # Fewer remain than are to be replaced.
    ((2, 2, 2, 2, 2, 5), (4, 0, 5, 1, 3, 2), 3, {5}),
    # Who is not finite is the worst.
    ((0, 2, 2, 3, 4, 5), (_NAN, 0, 5, 1, 3, _INF), 2, {0, 5}),
    ((0, 2, 2, 3, 4, 5), (4, -_INF, 5, _NAN, 3, 2), 1, {3}),
    # Nobody is finite, so there is no best one to keep.
    (_SELF, (_NAN,) * 6, 2, {4, 5}),
    (_SELF, (_NAN, _INF, -_INF, _NAN, _NAN, _NAN), 5, {1, 2, 3, 4, 5}),
  ],
)
def test_who_is_replaced_by_whom(parents, fitness, number, by_samples):
  emitter = _emitter(parents, num_replaced_by_samples=number)
  before = _init(emitter)
  after = _tell(emitter, before, fitness)
  before = jax.device_get(before)
  assert set(np.flatnonzero(after.sampled_cells >= 0)) == by_samples
  for i, parent in enumerate(parents):
    cell = after.sampled_cells[i]
    if i in by_samples:
      # As the elite was stored, hyperparameters too.
      assert cell in _OCCUPIED
      expected = [100 * cell, cell], cell + 0.5
    elif parent != i:
      assert cell == -1
      expected = before.members["x"][parent], 2 * (parent + 1)
    else:
      assert cell == -1
      expected = before.members["x"][i], i + 1
    np.testing.assert_array_equal(after.members["x"][i], expected[0])
    assert after.hyperparams["rate"][i] == expected[1]


def test_the_decision_and_what_it_was_made_on_are_recorded():
  emitter = _emitter((0, 2, 2, 3, 4, 5))
  state = _init(emitter)
  after = _tell(emitter, state, (4, 0, 5, _INF, _NAN, 2))
  assert (state.controller, after.controller) == (0, 1)
  _, decided = _preset((0, 2, 2, 3, 4, 5)).update(
    state.controller,
    jax.random.fold_in(jax.random.key(7), 2**31 - 1),
    np.zeros(6),
    state.hyperparams,
  )
  jax.tree.map(np.testing.assert_array_equal, after.decision, decided)
  assert after.fitness.dtype == np.float32
  np.testing.assert_array_equal(after.fitness, [4, 0, 5, _INF, _NAN, 2])


def test_members_that_are_not_finite_have_no_fitness():
  emitter = _emitter()
  state = _init(emitter)
  x = state.members["x"].at[2, 1].set(_NAN).at[4, 0].set(-_INF)
  state = state._replace(members=state.members | {"x": x})
  after = _tell(emitter, state, (1, 2, 3, 4, 5, 6))
  np.testing.assert_array_equal(after.fitness, [1, 2, _NAN, 4, _NAN, 6])
  assert set(np.flatnonzero(after.sampled_cells >= 0)) == {2, 4}
  assert np.all(np.isfinite(after.members["x"]))


def test_an_empty_repertoire_replaces_nobody():
  emitter = _emitter((0, 2, 2, 3, 4, 5))
  after = _tell(emitter, _init(emitter), (4, 0, 5, 1, 3, 2), _repertoire(()))
  np.testing.assert_array_equal(after.sampled_cells, [-1] * 6)
  np.testing.assert_array_equal(
    after.members["x"][:, 1], [0, 2, 2, 3, 4, 5]
  )
  np.testing.assert_array_equal(after.hyperparams["rate"], [1, 6, 3, 4, 5, 6])


def test_samples_are_drawn_independently_and_uniformly():
  emitter = _emitter(_SELF)
  state, repertoire = _init(emitter), _repertoire()

  def cells(key):
    evaluated = map_elites.Evaluated(None, jnp.arange(9.0), None, {})
    return emitter.tell(state, repertoire, evaluated, key).sampled_cells[:2]

  keys = jax.random.split(jax.random.key(0), 1800)
  drawn = np.asarray(jax.jit(jax.vmap(cells))(keys))
  pairs, counts = np.unique(drawn, axis=0, return_counts=True)
  np.testing.assert_array_equal(
    pairs, [[a, b] for a in _OCCUPIED for b in _OCCUPIED]
  )
  assert stats.chisquare(counts).pvalue > 1e-3


_SPACE = {"rate": controllers.LogUniform(0.1, 10.0)}


@functools.cache
def _compiled(exploit):
  controller = controllers.pbt(controllers.PBTConfig(exploit=exploit), _SPACE)
  emitter = _emitter(
    controller=controller, population_size=8, variation_batch_size=0
  )
  state = _init(emitter, _repertoire(names=("rate",)))
  update = jax.jit(controllers_common.update(controller))
  return update, state, jax.jit(emitter.tell)


def _reference(fitness, parents, number):
  """Who is replaced by samples, found one by one."""
  finite = [i for i, f in enumerate(fitness) if math.isfinite(f)]
  best = max(finite, key=lambda i: (fitness[i], -i), default=None)
  kept = {p for i, p in enumerate(parents) if p != i} | {best}
  remaining = [i for i, p in enumerate(parents) if p == i and i not in kept]
  chosen = set()
  while remaining and len(chosen) < number:
    worst = min(
      remaining, key=lambda i: (fitness[i] if i in finite else -_INF, -i)
    )
    remaining.remove(worst)
    chosen.add(worst)
  return chosen


@pytest.mark.slow
@pytest.mark.parametrize("exploit", ["truncation", "tournament"])
@hypothesis.settings(max_examples=40, deadline=None)
@hypothesis.given(
  fitness=strategies.lists(
    strategies.integers(-3, 3) | strategies.sampled_from([_NAN, _INF, -_INF]),
    min_size=8,
    max_size=8,
  ),
  seed=strategies.integers(0, 2**31 - 1),
)
def test_with_population_based_training(exploit, fitness, seed):
  update, state, tell = _compiled(exploit)
  fitness = np.float32(fitness)
  after = jax.device_get(
    tell(
      state,
      _repertoire(names=("rate",)),
      map_elites.Evaluated(None, fitness, None, {}),
      jax.random.key(seed),
    )
  )
  decision = jax.device_get(
    update(
      jax.random.fold_in(jax.random.key(seed), 2**31 - 1),
      fitness,
      state.hyperparams,
    )
  )
  np.testing.assert_array_equal(after.decision.parents, decision.parents)
  by_samples = _reference(fitness.tolist(), decision.parents.tolist(), 2)
  assert set(np.flatnonzero(after.sampled_cells >= 0)) == by_samples
  x, rate = jax.device_get((state.members["x"], state.hyperparams["rate"]))
  for i, parent in enumerate(decision.parents):
    if i in by_samples:
      cell = after.sampled_cells[i]
      np.testing.assert_array_equal(after.members["x"][i], [100 * cell, cell])
      assert after.hyperparams["rate"][i] == cell + 0.5
      continue
    np.testing.assert_array_equal(after.members["x"][i], x[parent])
    if parent != i:
      assert math.isfinite(fitness[parent])
    elif math.isfinite(fitness[i]):
      assert after.hyperparams["rate"][i] == rate[i]
    else:
      # Left to the caller: nobody was there to inherit from.
      assert not np.any(np.isfinite(fitness))


def test_at_first_everybody_survives_and_nothing_has_been_measured():
  emitter = _emitter()
  state = jax.device_get(_init(emitter))
  np.testing.assert_array_equal(state.decision.parents, _SELF)
  np.testing.assert_array_equal(state.decision.operator, [0] * 6)
  jax.tree.map(
    np.testing.assert_array_equal,
    state.decision.hyperparams,
    state.hyperparams,
  )
  np.testing.assert_array_equal(state.sampled_cells, [-1] * 6)
  assert np.all(np.isnan(state.fitness))
  assert state.metrics == {}


def test_a_new_state_can_be_donated():
  # The same array twice could not.
  leaves = jax.tree.leaves(_init(_emitter()))
  assert len({x.unsafe_buffer_pointer() for x in leaves}) == len(leaves)


def test_ask_trains_the_members_and_returns_them_first():
  emitter = _emitter()
  state = _init(emitter)
  elites, after = emitter.ask(state, _repertoire(), jax.random.key(1))
  assert emitter.batch_size == 9
  assert elites.genotype.shape == (9, 2)
  np.testing.assert_array_equal(elites.genotype[:6, 0], [1, 12, 23, 34, 45, 56])
  np.testing.assert_array_equal(elites.genotype[:6], after.members["x"])
  np.testing.assert_array_equal(elites.hyperparams["rate"][:6], range(1, 7))
  np.testing.assert_array_equal(after.metrics["speed"], range(2, 14, 2))
  jax.tree.map(
    np.testing.assert_array_equal, after.hyperparams, state.hyperparams
  )


def _parents_of(offspring):
  """The pairs (first, second) of cells, from (a + b / 2) and a's rate."""
  first = np.asarray(offspring.hyperparams["rate"]) - 0.5
  return first, 2 * (np.asarray(offspring.genotype[:, 1]) - first)


def test_variations_have_parents_in_occupied_cells():
  emitter = _emitter(variation_batch_size=3600)
  elites, _ = emitter.ask(_init(emitter), _repertoire(), jax.random.key(1))
  offspring = jax.tree.map(lambda x: x[6:], elites)
  pairs, counts = np.unique(
    np.stack(_parents_of(offspring), axis=1), axis=0, return_counts=True
  )
  np.testing.assert_array_equal(
    pairs, [[a, b] for a in _OCCUPIED for b in _OCCUPIED]
  )
  assert stats.chisquare(counts).pvalue > 1e-3


def test_variations_are_of_members_while_the_repertoire_is_empty():
  emitter = _emitter(
    variation_batch_size=100, variation_fn=lambda key, x1, x2: x1
  )
  repertoire = _repertoire(())
  elites, after = emitter.ask(
    _init(emitter, repertoire), repertoire, jax.random.key(1)
  )
  members = np.asarray(elites.hyperparams["rate"][6:]).astype(int) - 1
  assert set(members) == set(_SELF)
  np.testing.assert_array_equal(
    elites.genotype[6:], np.asarray(after.members["x"])[members]
  )


def test_there_may_be_no_variations_and_no_samples():
  emitter = _emitter(
    variation_fn=None, variation_batch_size=0, num_replaced_by_samples=0
  )
  elites, state = emitter.ask(
    _init(emitter), _repertoire(), jax.random.key(1)
  )
  assert emitter.batch_size == 6 and elites.genotype.shape == (6, 2)
  after = _tell(emitter, state, range(6))
  np.testing.assert_array_equal(after.sampled_cells, [-1] * 6)
  np.testing.assert_array_equal(after.members["x"], state.members["x"])


@functools.cache
def _used_keys(population_size):
  """All keys that the members got when every call has the same key."""
  emitter = _emitter(tuple(range(population_size)))
  state = _init(emitter)
  _, state = emitter.ask(state, _repertoire(), jax.random.key(0))
  state = _tell(emitter, state, range(population_size), seed=0)
  return state.members["keys"]


def test_a_member_s_keys_do_not_depend_on_the_population():
  small, large = _used_keys(3), _used_keys(6)
  assert set(small) == {"init", "train", "inherit", "transplant"}
  for use in small:
    np.testing.assert_array_equal(small[use], large[use][:3])
  expected = [jax.random.fold_in(jax.random.key(0), i) for i in range(6)]
  for use in ("init", "train"):
    np.testing.assert_array_equal(
      large[use], [jax.random.key_data(key) for key in expected]
    )


def test_no_two_members_or_uses_share_a_key():
  keys = []
  for use in ("train", "inherit", "transplant"):
    keys += map(tuple, _used_keys(6)[use])
  assert len(keys) == len(set(keys)) == 3 * 6


def test_every_other_use_folds_in_a_number_of_its_own(monkeypatch):
  emitter = _emitter()
  state, repertoire = _init(emitter), _repertoire()
  folded_in = []
  fold_in = jax.random.fold_in

  def recorded(key, data):
    if isinstance(data, int):
      folded_in.append(data)
    return fold_in(key, data)

  monkeypatch.setattr(jax.random, "fold_in", recorded)
  _, state = emitter.ask(state, repertoire, jax.random.key(0))
  _tell(emitter, state, range(6), repertoire)
  # Variations, the controller, samples, inheriting and transplanting.
  assert len(folded_in) == len(set(folded_in)) == 5
  assert 2**31 - 1 in folded_in and min(folded_in) > 2**30
  # In composed training these make new members and reset environments.
  assert not set(folded_in) & {2**31 - 2, 2**31 - 3}


@pytest.mark.slow
def test_generations_compile_once_and_train_the_best():
  controller = controllers.pbt(controllers.PBTConfig(), _SPACE)
  emitter = _emitter(
    controller=controller,
    population_size=6,
    variation_fn=map_elites.weights_only(
      functools.partial(map_elites.iso_line, iso_sigma=0.1, line_sigma=0.1)
    ),
  )

  @functools.partial(jax.jit, donate_argnums=(0, 1))
  def generation(state, repertoire, key):
    ask_key, tell_key = jax.random.split(key)
    elites, state = emitter.ask(state, repertoire, ask_key)
    x = elites.genotype
    fitness = jnp.where(x[:, 0] < 500, x[:, 0], jnp.nan)
    descriptors = x[:, 1:]
    repertoire = repertoire.add(elites, fitness, descriptors)
    evaluated = map_elites.Evaluated(elites, fitness, descriptors, {})
    state = emitter.tell(state, repertoire, evaluated, tell_key)
    return state, repertoire, elites

  repertoire = jax.tree.map(jnp.copy, _repertoire((), ("rate",)))
  state = _init(emitter, repertoire)
  best = -_INF
  for step in range(12):
    state, repertoire, elites = generation(
      state, repertoire, jax.random.fold_in(jax.random.key(5), step)
    )
    assert np.all(np.asarray(elites.hyperparams["rate"]) > 0)
    assert map_elites.max_fitness(repertoire) > best
    best = map_elites.max_fitness(repertoire)
    assert np.sum(np.asarray(state.sampled_cells) >= 0) == 2
  assert generation._cache_size() == 1


@pytest.mark.parametrize(
  "settings, complaint",
  [
    (
      {"population_size": 0},
      "population_size=0 is not a count; use at least 1, or genetic_emitter",
    ),
    ({"population_size": True}, "population_size=True is not a count"),
    ({"population_size": 2.0}, "population_size=2.0 is not a count"),
    ({"variation_batch_size": -1}, "variation_batch_size=-1 is not a count"),
    ({"num_replaced_by_samples": -1}, "num_replaced_by_samples=-1 is not"),
    (
      {"num_replaced_by_samples": 6},
      "num_replaced_by_samples=6 leaves none of population_size=6; use at most"
      " 5",
    ),
  ],
)
def test_counts_that_do_not_fit_are_refused(settings, complaint):
  with pytest.raises(ValueError, match=complaint):
    _emitter(**settings)


def test_a_population_too_small_for_the_controller_is_refused():
  config = controllers.PBTConfig(num_parents=4, num_replaced=3)
  controller = controllers.pbt(config, _SPACE)
  with pytest.raises(ValueError, match="num_parents=4 and num_replaced=3"):
    _emitter(controller=controller, population_size=6)


@pytest.mark.parametrize(
  "example",
  [
    jnp.zeros(2),
    map_elites.Elite(jnp.zeros(2), {"rate": jnp.zeros(())}),
    map_elites.Elite(
      jnp.zeros(3), {"rate": jnp.zeros(()), "draw": jnp.zeros(())}
    ),
  ],
)
def test_a_repertoire_of_something_else_is_refused(example):
  repertoire = map_elites.Repertoire.init(example, _GRID)
  complaint = "repertoire holds .* make it with an example of one Elite"
  with pytest.raises(ValueError, match=complaint):
    _init(_emitter(), repertoire)


def test_fitness_must_be_of_all_that_was_asked():
  emitter = _emitter()
  state = _init(emitter)
  with pytest.raises(ValueError, match=r"fitness has shape \(6,\); give \(9,"):
    evaluated = map_elites.Evaluated(None, np.zeros(6), None, {})
    emitter.tell(state, _repertoire(), evaluated, jax.random.key(0))
