"""Tests of emitters whose individuals learn from a shared critic."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qdrl_haiku import map_elites

# An individual's genotype is its descriptor.
_GRID = map_elites.Grid((8,), (0.0,), (8.0,))
_OCCUPIED = np.float32([1.5, 2.5, 6.5])


def _teacher():
  """Counts its lessons, adds 100 to parents, and 1,000 to own policies."""

  def remember(state, evaluated, targets):
    told = jnp.stack(
      [evaluated.extra["transitions"], evaluated.descriptors[:, 0]]
    )
    return state | {"told": jnp.concatenate([told, targets.T])}

  return map_elites.Teacher(
    init=lambda key: {"lessons": jnp.zeros(()), "told": jnp.zeros((3, 6))},
    remember=remember,
    train=lambda state, key: (
      state | {"lessons": state["lessons"] + 1},
      {"loss": -state["lessons"]},
    ),
    improve=lambda state, individuals, targets, key: (
      individuals + 100 * state["lessons"] + 0 * targets
    ),
    policies=lambda state, targets: 1000 + targets,
  )


def _vary(key, x1, x2):
  return -x1


@functools.cache
def _emitter(make=map_elites.dcrl_emitter, sizes=(2, 1, 3)):
  improved, injected, varied = sizes
  return make(
    _teacher(),
    _vary,
    gradient_batch_size=improved,
    injection_batch_size=injected,
    variation_batch_size=varied,
  )


@functools.cache
def _repertoire():
  return jax.jit(map_elites.Repertoire.add)(
    map_elites.Repertoire.init(jnp.zeros(1), _GRID),
    _OCCUPIED[:, None],
    np.zeros(3),
    _OCCUPIED[:, None],
  )


@functools.partial(jax.jit, static_argnums=0)
def _ask(emitter, repertoire, key):
  state = emitter.init(jax.random.key(1), repertoire)
  return *emitter.ask(state, repertoire, key), state


def _asked(emitter, seed=0):
  return _ask(emitter, _repertoire(), jax.random.key(seed))[:2]


def _told(tell, state, descriptors):
  size = len(descriptors)
  evaluated = map_elites.Evaluated(
    np.zeros((size, 1)),
    np.zeros(size),
    np.float32(descriptors)[:, None],
    {"transitions": np.arange(size, dtype=np.float32)},
  )
  return jax.jit(tell)(state, _repertoire(), evaluated, jax.random.key(2))


def test_parents_are_improved_policies_injected_and_the_rest_varied():
  individuals, state = _asked(_emitter())
  individuals = np.asarray(individuals)[:, 0]
  assert set(individuals[:2] - 100) <= set(_OCCUPIED)
  assert individuals[2] - 1000 in _OCCUPIED
  assert set(-individuals[3:]) <= set(_OCCUPIED)
  assert state.teacher["lessons"] == 1


def test_targets_are_where_parents_and_drawn_elites_are():
  emitter = _emitter()
  individuals, state = _asked(emitter)
  made_for = np.asarray(individuals)[:3, 0] - [100, 100, 1000]
  np.testing.assert_array_equal(state.targets[:, 0], made_for)
  found = np.arange(6) / 2
  told = _told(emitter.tell, state, found).teacher["told"]
  np.testing.assert_array_equal(told[0], np.arange(6))
  np.testing.assert_array_equal(told[1], found)
  # A variation was made for nothing but what it turned out to be.
  np.testing.assert_array_equal(told[2], [*made_for, *found[3:]])


def test_the_first_individuals_are_remembered_however_many_there_are():
  emitter = _emitter()
  _, state = _asked(emitter)
  told = _told(emitter.tell_first, state, np.arange(4)).teacher["told"]
  np.testing.assert_array_equal(told, [np.arange(4)] * 3)


def test_what_training_says_is_in_the_row_from_the_beginning():
  emitter = _emitter()
  _, state, before = _ask(emitter, _repertoire(), jax.random.key(0))
  assert np.isnan(emitter.metrics(before)["loss"])
  assert emitter.metrics(state) == {"loss": 0}
  assert before.targets.shape == state.targets.shape


def test_parents_and_targets_are_drawn_by_the_key():
  emitter = _emitter(sizes=(50, 50, 50))
  first, again = (_asked(emitter)[0] for _ in range(2))
  other = _asked(emitter, seed=1)[0]
  np.testing.assert_array_equal(first, again)
  parents, targets, varied = np.split(np.asarray(first)[:, 0], 3)
  same = (parents - 100 == targets - 1000, parents - 100 == -varied)
  assert np.mean(same) < 0.6 and not np.array_equal(first, other)


@pytest.mark.parametrize("sizes", [(0, 0, 6), (6, 0, 0), (0, 6, 0)])
def test_any_kind_of_individuals_may_be_none(sizes):
  emitter = _emitter(sizes=sizes)
  individuals, state = _asked(emitter)
  assert individuals.shape == (6, 1) and emitter.batch_size == 6
  assert state.targets.shape == (6 - sizes[2], 1)


def test_one_policy_is_not_injected_twice():
  with pytest.raises(ValueError, match="injection_batch_size=2 would inject"):
    _emitter(map_elites.pga_emitter, (2, 2, 2))
  assert _emitter(map_elites.pga_emitter).batch_size == 6


def test_similarity_is_that_of_float64():
  rng = np.random.default_rng(0)
  first, second = rng.normal(size=(2, 5, 3))
  distance = np.sqrt(np.sum((first - second) ** 2, axis=1))
  np.testing.assert_allclose(
    map_elites.similarity(jnp.asarray(first), jnp.asarray(second), 0.7),
    np.exp(-distance / 0.7),
    rtol=1e-5,
  )
  same = jnp.asarray(first)
  np.testing.assert_array_equal(map_elites.similarity(same, same, 0.1), 1)
