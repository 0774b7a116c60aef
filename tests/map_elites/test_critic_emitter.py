"""Tests of emitters whose individuals learn from a shared critic."""

import jax
import jax.numpy as jnp
import numpy as np

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
  init=lambda key: {"lessons": jnp.zeros(()), "told": jnp.zeros((3, 150))},
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


def _emitter(*sizes):
  names = ("gradient", "injection", "variation")
  batch_sizes = {
    f"{name}_batch_size": size for name, size in zip(names, sizes, strict=True)
  }
  return map_elites.dcrl_emitter(_TEACHER, lambda key, x, _: -x, **batch_sizes)


def _evaluated(descriptors):
  numbers = jnp.arange(float(len(descriptors)))
  return map_elites.Evaluated(
    descriptors, numbers, descriptors, {"transitions": numbers}
  )


def test_parents_are_improved_policies_injected_and_the_rest_varied():
  emitter = _emitter(50, 50, 50)

  @jax.jit
  def turn():
    first = jnp.asarray(_OCCUPIED)[:, None]
    repertoire = map_elites.Repertoire.init(jnp.zeros(1), _GRID).add(
      first, jnp.zeros(3), first
    )
    before = emitter.init(jax.random.key(1), repertoire)
    key = jax.random.key(0)
    told_first = emitter.tell_first(before, repertoire, _evaluated(first), key)
    individuals, state = emitter.ask(before, repertoire, key)
    found = jnp.arange(150.0)[:, None] / 2
    told = emitter.tell(state, repertoire, _evaluated(found), key)
    return individuals[:, 0], before, told_first, state, told

  individuals, before, told_first, state, told = jax.device_get(turn())
  parents, policies, varied = np.split(individuals, 3)
  # Targets are the descriptors of parents, and of elites that are drawn.
  made_for = np.concatenate([parents - 100, policies - 1000])
  np.testing.assert_array_equal(state.targets[:, 0], made_for)
  for drawn in (*np.split(made_for, 2), -varied):
    assert set(drawn) == set(_OCCUPIED)
  # Each is drawn for itself.
  same = parents - 100 == policies - 1000, parents - 100 == -varied
  assert np.mean(same) < 0.6
  found = np.arange(150) / 2
  # A variation was made for nothing but its own descriptor.
  np.testing.assert_array_equal(
    told.teacher["told"],
    [np.arange(150), found, [*made_for, *found[100:]]],
  )
  np.testing.assert_array_equal(
    told_first.teacher["told"], [np.arange(3), _OCCUPIED, _OCCUPIED]
  )
  # Metrics of training are there from the beginning.
  assert state.teacher["lessons"] == 1
  assert np.isnan(emitter.metrics(before)["loss"])
  assert emitter.metrics(state) == {"loss": 0}


def test_any_kind_of_individuals_may_be_none():
  repertoire = map_elites.Repertoire.init(jnp.zeros(1), _GRID)
  for sizes in ((0, 0, 6), (6, 0, 0), (0, 6, 0)):
    emitter = _emitter(*sizes)
    individuals, state = jax.eval_shape(
      lambda key, emitter=emitter: emitter.ask(
        emitter.init(key, repertoire), repertoire, key
      ),
      jax.random.key(0),
    )
    assert individuals.shape == (6, 1) and emitter.batch_size == 6
    assert state.targets.shape == (6 - sizes[2], 1)


def test_similarity_is_that_of_float64():
  rng = np.random.default_rng(0)
  first, second = rng.normal(size=(2, 5, 3))
  distance = np.sqrt(np.sum((first - second) ** 2, axis=1))
  np.testing.assert_allclose(
    map_elites.dcrl_similarity(jnp.asarray(first), jnp.asarray(second), 0.7),
    np.exp(-distance / 0.7),
    rtol=1e-5,
  )
