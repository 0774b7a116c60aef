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


def _remember(state, evaluated, targets):
  told = jnp.stack(
    [evaluated.extra["transitions"], evaluated.descriptors[:, 0]]
  )
  return state | {"told": jnp.concatenate([told, targets.T])}


# Counts its lessons, adds 100 to parents, and 1,000 to policies of its own.
_TEACHER = map_elites.Teacher(
  init=lambda key: {"lessons": jnp.zeros(()), "told": jnp.zeros((3, 6))},
  remember=_remember,
  train=lambda state, key: (
    state | {"lessons": state["lessons"] + 1},
    {"loss": -state["lessons"]},
  ),
  improve=lambda state, individuals, targets, key: (
    individuals + 100 * state["lessons"] + 0 * targets
  ),
  policies=lambda state, targets: 1000 + targets,
)


@functools.cache
def _emitter(sizes=(2, 1, 3), make=map_elites.dcrl_emitter):
  improved, injected, varied = sizes
  return make(
    _TEACHER,
    lambda key, x1, x2: -x1,
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
  before = emitter.init(jax.random.key(1), repertoire)
  return *emitter.ask(before, repertoire, key), before


def _asked(sizes=(2, 1, 3), seed=0):
  individuals, *states = _ask(
    _emitter(sizes), _repertoire(), jax.random.key(seed)
  )
  return np.asarray(individuals)[:, 0], *states


def _told(tell, state, descriptors):
  size = len(descriptors)
  evaluated = map_elites.Evaluated(
    np.zeros((size, 1)),
    np.zeros(size),
    np.float32(descriptors)[:, None],
    {"transitions": np.arange(size, dtype=np.float32)},
  )
  state = jax.jit(tell)(state, _repertoire(), evaluated, jax.random.key(2))
  return state.teacher["told"]


def test_parents_are_improved_policies_injected_and_the_rest_varied():
  individuals, state, _ = _asked()
  assert set(individuals[:2] - 100) <= set(_OCCUPIED)
  assert individuals[2] - 1000 in _OCCUPIED
  assert set(-individuals[3:]) <= set(_OCCUPIED)
  assert state.teacher["lessons"] == 1
  # Targets are the descriptors of parents, and of elites that are drawn.
  made_for = individuals[:3] - [100, 100, 1000]
  np.testing.assert_array_equal(state.targets[:, 0], made_for)
  found = np.arange(6) / 2
  told = _told(_emitter().tell, state, found)
  np.testing.assert_array_equal(told[0], np.arange(6))
  np.testing.assert_array_equal(told[1], found)
  # A variation was made for nothing but its own descriptor.
  np.testing.assert_array_equal(told[2], [*made_for, *found[3:]])


def test_the_first_individuals_are_remembered_however_many_there_are():
  _, state, _ = _asked()
  told = _told(_emitter().tell_first, state, np.arange(4))
  np.testing.assert_array_equal(told, [np.arange(4)] * 3)


def test_metrics_of_training_are_there_from_the_beginning():
  _, state, before = _asked()
  assert np.isnan(_emitter().metrics(before)["loss"])
  assert _emitter().metrics(state) == {"loss": 0}
  assert before.targets.shape == state.targets.shape


def test_parents_and_targets_are_drawn_by_the_key():
  first, again, other = (_asked((50,) * 3, seed)[0] for seed in (0, 0, 1))
  np.testing.assert_array_equal(first, again)
  parents, targets, varied = np.split(first, 3)
  same = (parents - 100 == targets - 1000, parents - 100 == -varied)
  assert np.mean(same) < 0.6 and not np.array_equal(first, other)


@pytest.mark.parametrize("sizes", [(0, 0, 6), (6, 0, 0), (0, 6, 0)])
def test_any_kind_of_individuals_may_be_none(sizes):
  emitter = _emitter(sizes, map_elites.dcrl_emitter)
  individuals, state = jax.eval_shape(
    emitter.ask, emitter.init(jax.random.key(1), _repertoire()),
    _repertoire(), jax.random.key(0),
  )  # fmt: skip
  assert individuals.shape == (6, 1) and emitter.batch_size == 6
  assert state.targets.shape == (6 - sizes[2], 1)


def test_pga_injects_one_policy_at_most():
  assert _emitter(make=map_elites.pga_emitter).batch_size == 6
  with pytest.raises(ValueError, match="injection_batch_size=2 would inject"):
    _emitter((2, 2, 2), map_elites.pga_emitter)


def test_similarity_is_that_of_float64():
  rng = np.random.default_rng(0)
  first, second = rng.normal(size=(2, 5, 3))
  distance = np.sqrt(np.sum((first - second) ** 2, axis=1))
  np.testing.assert_allclose(
    map_elites.similarity(jnp.asarray(first), jnp.asarray(second), 0.7),
    np.exp(-distance / 0.7),
    rtol=1e-5,
  )
