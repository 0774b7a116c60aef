"""Tests of emitters: the genetic one, and those with a shared critic."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from qdrl_haiku import map_elites
from tests import compilations

# An individual's genotype names its cell.
_GRID = map_elites.Grid((8,), (0.0,), (8.0,))
_OCCUPIED = (1, 2, 6)
_SIZE = 3600


def _repertoire():
  x = np.float32(_OCCUPIED)
  repertoire = map_elites.Repertoire.init(jnp.zeros(2), _GRID)
  return jax.jit(map_elites.Repertoire.add)(
    repertoire, np.stack([x, -x], axis=1), 0 * x, x[:, None] + 0.5)


def _vary(key, x1, x2):
  """Offspring that tell both parents, and the noise."""
  noise = jax.random.normal(key, x1.shape[:1])
  return jnp.stack([x1[:, 0], x2[:, 0] + 0 * x1[:, 1], noise], axis=1)


def test_parents_are_drawn_independently_and_uniformly_from_occupied_cells():
  emitter = map_elites.genetic_emitter(_vary, _SIZE)
  offspring, state = jax.jit(emitter.ask)((), _repertoire(), jax.random.key(0))
  assert state == () and offspring.shape == (_SIZE, 3)
  seen, counts = np.unique(
    np.asarray(offspring)[:, :2], axis=0, return_counts=True)
  np.testing.assert_array_equal(
    seen, [[a, b] for a in _OCCUPIED for b in _OCCUPIED])
  assert stats.chisquare(counts).pvalue > 1e-3
  noise = np.asarray(offspring)[:, 2]
  assert stats.kstest(noise, stats.norm.cdf).pvalue > 1e-3


def test_a_batch_may_be_empty_and_then_nothing_is_varied():
  emitter = map_elites.genetic_emitter(None, 0)
  offspring, _ = emitter.ask((), _repertoire(), jax.random.key(0))
  assert emitter.batch_size == 0 and offspring.shape == (0, 2)


_OWN = map_elites.genetic_emitter(lambda key, x, y: x, 16)._replace(
  init=lambda key, repertoire: jnp.zeros((), jnp.int32),
  ask=lambda state, repertoire, key: (repertoire.sample(key, 16), state + 1))
_ROWS = map_elites.Repertoire.init(
  {"x": jnp.zeros(2)}, map_elites.Grid((4, 4), (0.0, 0.0), (1.0, 1.0)))


def _score(genotypes, key):
  del key
  return jnp.sum(genotypes["x"], axis=1), genotypes["x"], {}


def test_an_emitter_as_it_should_be_passes_and_compiles_nothing():
  assert compilations.of(lambda: map_elites.check(_OWN, _ROWS)) == 0


@pytest.mark.parametrize(("changes", "message"), [
  ({"ask": lambda *args: _OWN.ask(*args)[::-1]},
   "like the repertoire's, and then the emitter's new state."),
  ({"ask": lambda *args: _OWN.ask(*args)[0]}, "ask returns a dict; return a"),
  ({"tell": lambda *args: args[2].fitness},
   "tell returns differs from that of init: the array is float32(16,), not "
   "int32()"),
  ({"shared": (True, False)},
   "shared=(True, False) is no tree prefix of the state that its init")])
def test_an_emitter_that_is_none_is_refused_with_the_fix(changes, message):
  with pytest.raises(ValueError) as caught:
    map_elites.check(_OWN._replace(**changes), _ROWS)
  assert message in str(caught.value)


def test_a_step_refuses_what_the_emitter_must_not_return():
  emitter = _OWN._replace(batch_size=32)
  container = map_elites.cells(_ROWS.tessellation)
  with pytest.raises(ValueError, match="return batch_size=32 genotypes"):
    jax.eval_shape(
      lambda key: map_elites.step(
        emitter, container, _score, _ROWS, jnp.int32(0), key),
      jax.random.key(1))


# An individual's genotype is its descriptor there.
_PLACES = np.float32([1.5, 2.5, 6.5])


def _remember(state, evaluated, targets):
  told = jnp.stack(
    [evaluated.extra["transitions"], evaluated.descriptors[:, 0]])
  return state | {"told": jnp.concatenate([told, targets.T])}


# Counts its lessons, adds 100 to parents, and 1,000 to policies of its own.
_TEACHER = map_elites.Teacher(
  init=lambda key: {"lessons": jnp.zeros(()), "told": jnp.zeros((3, 150))},
  remember=_remember,
  train=lambda state, key: (
    state | {"lessons": state["lessons"] + 1},
    {"loss": -state["lessons"]}),
  improve=lambda state, individuals, targets, key: (
    individuals + 100 * state["lessons"] + 0 * targets),
  policies=lambda state, targets: 1000 + targets)


def _emitter(*sizes):
  names = ("gradient", "injection", "variation")
  batch_sizes = {
    f"{name}_batch_size": size for name, size in zip(names, sizes, strict=True)}
  return map_elites.dcrl_emitter(_TEACHER, lambda key, x, _: -x, **batch_sizes)


def _seen(descriptors):
  numbers = jnp.arange(float(len(descriptors)))
  return map_elites.Evaluated(
    descriptors, numbers, descriptors, {"transitions": numbers})


def test_parents_are_improved_policies_injected_and_the_rest_varied():
  emitter = _emitter(50, 50, 50)

  @jax.jit
  def turn():
    first = jnp.asarray(_PLACES)[:, None]
    repertoire = map_elites.Repertoire.init(jnp.zeros(1), _GRID).add(
      first, jnp.zeros(3), first)
    before = emitter.init(jax.random.key(1), repertoire)
    key = jax.random.key(0)
    told_first = emitter.tell_first(before, repertoire, _seen(first), key)
    individuals, state = emitter.ask(before, repertoire, key)
    found = jnp.arange(150.0)[:, None] / 2
    told = emitter.tell(state, repertoire, _seen(found), key)
    return individuals[:, 0], before, told_first, state, told

  individuals, before, told_first, state, told = jax.device_get(turn())
  parents, policies, varied = np.split(individuals, 3)
  # Targets are the descriptors of parents, and of elites that are drawn.
  made_for = np.concatenate([parents - 100, policies - 1000])
  np.testing.assert_array_equal(state.targets[:, 0], made_for)
  for drawn in (*np.split(made_for, 2), -varied):
    assert set(drawn) == set(_PLACES)
  # Each is drawn for itself.
  same = parents - 100 == policies - 1000, parents - 100 == -varied
  assert np.mean(same) < 0.6
  found = np.arange(150) / 2
  # A variation was made for nothing but its own descriptor.
  np.testing.assert_array_equal(
    told.teacher["told"], [np.arange(150), found, [*made_for, *found[100:]]])
  np.testing.assert_array_equal(
    told_first.teacher["told"], [np.arange(3), _PLACES, _PLACES])
  # Metrics of training are there from the beginning.
  assert state.teacher["lessons"] == 1
  assert np.isnan(emitter.metrics(before)["loss"])
  assert emitter.metrics(state) == {"loss": 0}


def test_any_kind_of_seen_may_be_none():
  repertoire = map_elites.Repertoire.init(jnp.zeros(1), _GRID)
  for sizes in ((0, 0, 6), (6, 0, 0), (0, 6, 0)):
    emitter = _emitter(*sizes)
    individuals, state = jax.eval_shape(
      lambda key, emitter=emitter: emitter.ask(
        emitter.init(key, repertoire), repertoire, key),
      jax.random.key(0))
    assert individuals.shape == (6, 1) and emitter.batch_size == 6
    assert state.targets.shape == (6 - sizes[2], 1)


def test_similarity_is_that_of_float64():
  rng = np.random.default_rng(0)
  first, second = rng.normal(size=(2, 5, 3))
  distance = np.sqrt(np.sum((first - second) ** 2, axis=1))
  np.testing.assert_allclose(
    map_elites.dcrl_similarity(jnp.asarray(first), jnp.asarray(second), 0.7),
    np.exp(-distance / 0.7), rtol=1e-5)
