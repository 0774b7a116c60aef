"""Tests of the emitter that is a population of training agents."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from qdrl_haiku import controllers, map_elites, prng

_NAN, _INF = math.nan, math.inf
_GRID = map_elites.Grid((8,), (0.0,), (8.0,))
_OCCUPIED = (1, 2, 6)
_SELF = (0, 1, 2, 3, 4, 5)
_KEY = jax.random.key(7)


def _init_members(keys):
  """Agents that are two numbers each, (10 i, i), and the keys they were given.
  """
  i = jnp.arange(keys.shape[0], dtype=jnp.float32)
  data = jax.random.key_data(keys)
  given = dict.fromkeys(("init", "train"), data)
  return given | {"x": jnp.stack([10 * i, i], axis=1)}


def _train(members, hyperparams, keys):
  """Walks by the rate."""
  x = members["x"].at[:, 0].add(hyperparams["rate"])
  speed = {"speed": 2 * hyperparams["rate"]}
  return members | {"x": x, "train": jax.random.key_data(keys)}, speed


_AGENTS = map_elites.Agents(
  init=_init_members, train=_train, genotypes=lambda members: members["x"],
  inherit=lambda members, parents, finite: (
    members | {"x": members["x"][parents]}),
  transplant=lambda members, genotypes, where: members | {
    "x": jnp.where(where[:, None], genotypes, members["x"])},
  is_finite=lambda members: jnp.all(jnp.isfinite(members["x"]), axis=1))


def _decide(state, key, fitness, hyperparams):
  """Decides for the parents in its state; children go at twice the rate."""
  parents, rate = state["parents"], hyperparams["rate"]
  assert fitness.shape == parents.shape
  replaced = parents != jnp.arange(parents.size)
  return state | {"count": state["count"] + 1}, controllers.Decision(
    parents,
    {
      "rate": jnp.where(replaced, 2 * rate[parents], rate),
      "draw": jax.random.uniform(key, parents.shape)},
    jnp.where(replaced, 2, 0))


_PRESET = controllers.Controller(
  lambda key, size: (
    {"count": jnp.int32(0), "parents": jnp.arange(size, dtype=jnp.int32)},
    {"rate": jnp.arange(1.0, 1.0 + size), "draw": jnp.zeros(size)}),
  _decide, ("survive", "resample", "perturb"))


@functools.cache
def _emitter(num_replaced_by_samples=2):
  """The emitter, with functions that are compiled once."""

  def add_halves(key, x1, x2):
    """Offspring that tell their parents; hyperparameters are the first's."""
    return map_elites.Elite(x1.genotype + x2.genotype / 2, x1.hyperparams)

  emitter = map_elites.pbt_emitter(
    _AGENTS, _PRESET, add_halves, population_size=6, variation_batch_size=3600,
    num_replaced_by_samples=num_replaced_by_samples)
  return emitter._replace(
    init=jax.jit(emitter.init), ask=jax.jit(emitter.ask),
    tell=jax.jit(emitter.tell))


@functools.cache
def _repertoire(cells=_OCCUPIED):
  """Elites ((100 c, c), rate c + 0.5) in the cells c."""
  c, names = np.float32(cells), ("draw", "rate")
  example = map_elites.Elite(jnp.zeros(2), dict.fromkeys(names, jnp.zeros(())))
  elites = map_elites.Elite(
    np.stack([100 * c, c], axis=1), dict.fromkeys(names, c + 0.5))
  repertoire = map_elites.Repertoire.init(example, _GRID)
  return jax.jit(map_elites.Repertoire.add)(
    repertoire, elites, 0 * c, c[:, None] + 0.5)


def _init(emitter, parents=_SELF):
  state = emitter.init(_KEY, _repertoire())
  preset = state.controller | {"parents": jnp.int32(parents)}
  return state._replace(controller=preset)


def _tell(emitter, state, fitness, repertoire=None):
  """Tells the members' fitness, and that all variations are far fitter."""
  rest = [1e6] * (emitter.batch_size - len(fitness))
  evaluated = map_elites.Evaluated(
    None, np.float32([*fitness, *rest]), None, {})
  repertoire = repertoire or _repertoire()
  return jax.device_get(emitter.tell(state, repertoire, evaluated, _KEY))


@pytest.mark.parametrize("parents, fitness, number, by_samples", [
  # The worst, 1, is the best one's child; then come 3 and 5.
  ((0, 2, 2, 3, 4, 5), (4, 0, 5, 1, 3, 2), 2, {3, 5}),
  # A parent stays, however bad it is.
  ((0, 3, 2, 3, 4, 5), (4, 0, 5, 1, 3, 2), 2, {5, 4}),
  # Ties: the lower index ranks higher, as for controllers.
  (_SELF, (1, 0, 0, 1, 0, 1), 2, {2, 4}),
  # All but the best, be it a parent or not.
  (_SELF, (4, 0, 5, 1, 3, 2), 5, {0, 1, 3, 4, 5}),
  # Fewer remain than are to be replaced.
  ((2, 2, 2, 2, 2, 5), (4, 0, 5, 1, 3, 2), 5, {5}),
  # A member that is not finite is the worst.
  ((0, 2, 2, 3, 4, 5), (_NAN, 0, 5, 1, 3, _INF), 2, {0, 5}),
  # None is finite, so there is no best one to keep.
  (_SELF, (_NAN, _INF, -_INF, _NAN, _NAN, _NAN), 5, {1, 2, 3, 4, 5})])
def test_samples_replace_the_worst(parents, fitness, number, by_samples):
  emitter = _emitter(number)
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


def test_members_that_are_not_finite_have_fitness_nan():
  emitter = _emitter()
  state = _init(emitter, (0, 0, 2, 3, 4, 5))
  x = state.members["x"].at[2, 1].set(_NAN).at[4, 0].set(-_INF)
  state = state._replace(members=state.members | {"x": x})
  after = _tell(emitter, state, (1, 2, 3, 4, 5, 6))
  np.testing.assert_array_equal(after.fitness, [1, 2, _NAN, 4, _NAN, 6])
  assert set(np.flatnonzero(after.sampled_cells >= 0)) == {2, 4}
  assert np.all(np.isfinite(after.members["x"]))
  # The decision is recorded as it was made.
  key = jax.random.fold_in(_KEY, prng.OfGeneration.CONTROLLER)
  remembered, decided = _decide(
    state.controller, key, np.zeros(6), state.hyperparams)
  jax.tree.map(np.testing.assert_array_equal, after.decision, decided)
  assert after.controller["count"] == remembered["count"] == 1


def test_what_is_inherited_depends_on_evaluations_too():
  """A member whose return is NaN may have NaN in its replay."""
  agents = _AGENTS._replace(
    inherit=lambda members, parents, finite: members
    | {"x": jnp.where(finite[:, None], members["x"], 0.0)})
  emitter = map_elites.pbt_emitter(
    agents, _PRESET, lambda key, x1, x2: x1, population_size=6,
    variation_batch_size=0, num_replaced_by_samples=0)
  before = _init(emitter)
  after = _tell(emitter, before, (1, _NAN, 3, 4, _INF, 6))
  expected = np.array(before.members["x"])
  expected[[1, 4]] = 0
  np.testing.assert_array_equal(after.members["x"], expected)


def test_an_empty_repertoire_replaces_no_member():
  emitter = _emitter()
  state = _init(emitter, (0, 2, 2, 3, 4, 5))
  after = _tell(emitter, state, (4, 0, 5, 1, 3, 2), _repertoire(()))
  np.testing.assert_array_equal(after.sampled_cells, [-1] * 6)
  np.testing.assert_array_equal(after.hyperparams["rate"], [1, 6, 3, 4, 5, 6])


def _assert_pairs_of_occupied_cells(pairs):
  pairs, counts = np.unique(pairs, axis=0, return_counts=True)
  np.testing.assert_array_equal(
    pairs, [[a, b] for a in _OCCUPIED for b in _OCCUPIED])
  assert stats.chisquare(counts).pvalue > 1e-3


def test_samples_are_drawn_independently_and_uniformly():
  emitter, repertoire = _emitter(), _repertoire()
  state = _init(emitter)
  evaluated = map_elites.Evaluated(None, jnp.arange(3606.0), None, {})
  tell = jax.vmap(
    lambda key: emitter.tell(state, repertoire, evaluated, key).sampled_cells)
  keys = jax.random.split(_KEY, 1800)
  _assert_pairs_of_occupied_cells(jax.jit(tell)(keys)[:, :2])


def test_ask_trains_the_members_and_varies_elites():
  emitter = _emitter()
  state = _init(emitter)
  np.testing.assert_array_equal(state.decision.parents, _SELF)
  elites, after = emitter.ask(state, _repertoire(), jax.random.key(1))
  assert emitter.batch_size == 3606 and elites.genotype.shape == (3606, 2)
  np.testing.assert_array_equal(elites.genotype[:6, 0], [1, 12, 23, 34, 45, 56])
  np.testing.assert_array_equal(elites.genotype[:6], after.members["x"])
  np.testing.assert_array_equal(elites.hyperparams["rate"][:6], range(1, 7))
  np.testing.assert_array_equal(after.metrics["speed"], range(2, 14, 2))
  # The offspring of cells a and b is a + b / 2, with a's rate.
  first = np.asarray(elites.hyperparams["rate"][6:]) - 0.5
  second = 2 * (np.asarray(elites.genotype[6:, 1]) - first)
  _assert_pairs_of_occupied_cells(np.stack([first, second], axis=1))
  # While the repertoire is empty, those of members vary.
  elites, after = emitter.ask(state, _repertoire(()), jax.random.key(1))
  members = np.asarray(elites.hyperparams["rate"][6:]).astype(int) - 1
  assert set(members) == set(_SELF)
  own = np.asarray(after.members["x"])
  halves = 2 * (np.asarray(elites.genotype[6:]) - own[members])
  assert {tuple(row) for row in halves} == {tuple(row) for row in own}


def test_a_members_keys_depend_on_its_number_alone_and_are_never_shared():
  emitter = _emitter()
  _, state = emitter.ask(_init(emitter), _repertoire(), _KEY)
  used = _tell(emitter, state, range(6)).members
  expected = [jax.random.fold_in(_KEY, i) for i in range(6)]
  for use in ("init", "train"):
    np.testing.assert_array_equal(
      used[use], [jax.random.key_data(key) for key in expected])
