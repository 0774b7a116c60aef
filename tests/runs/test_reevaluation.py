"""Tests of a second look at elites, with tiny agents."""

import dataclasses
import functools

import jax
import numpy as np
import pytest

from qdrl_haiku import actors, distributed
from qdrl_haiku.runs import reevaluation
from tests import compilations
from tests.training import common

_KEY = jax.random.key(99)


def _setup():
  """Of a generation of eight variations, two episodes of each."""
  return common.repertoire_setup(
    with_pbt=False,
    mesh=distributed.population_mesh(1, jax.devices()[:1]),
    variations=8,
  )


@functools.cache
def _filled():
  """A setup and a repertoire that two generations have filled."""
  trainer = common.Trainer(_setup(), jax.random.key(3))
  state = trainer.first
  for _ in range(2):
    state, _ = trainer.step(state)
  return trainer.setup, state.repertoire


def _with_cells(repertoire, cells):
  """The repertoire, all but those cells emptied."""
  keep = np.isin(np.arange(repertoire.fitness.size), cells)
  return dataclasses.replace(
    repertoire, fitness=np.where(keep, repertoire.fitness, -np.inf)
  )


@functools.cache
def _reevaluate():
  """Looks at each elite twice."""
  return reevaluation.make_reevaluate(_filled()[0], 2)


def _one_by_one(setup, repertoire):
  """{cell: (fitness, descriptor, where it came from)}, in a plain loop."""
  found = {}
  env = setup.eval_env

  @jax.jit
  def evaluate(genotype, key):
    return actors.evaluate(
      env,
      setup.learner,
      jax.tree.map(lambda x: x[None], setup.learner.from_genotype(genotype)),
      key[None],
      2,
      env.descriptor.function,
    )

  for cell in np.flatnonzero(repertoire.occupied):
    evaluation = evaluate(
      common.member(repertoire.genotypes.genotype, cell),
      jax.random.fold_in(_KEY, cell),
    )
    fitness = np.mean(evaluation.returns)
    descriptor = np.mean(evaluation.descriptors[0], 0)
    where = int(repertoire.tessellation.cell(descriptor[None])[0])
    if where not in found or fitness > found[where][0]:
      found[where] = (fitness, descriptor, cell)
  return found


def _assert_is(corrected, expected):
  corrected = jax.device_get(corrected)
  assert np.flatnonzero(corrected.occupied).tolist() == sorted(expected)
  for where, (fitness, descriptor, cell) in expected.items():
    np.testing.assert_allclose(corrected.fitness[where], fitness, rtol=1e-4)
    np.testing.assert_allclose(
      corrected.descriptors[where], descriptor, rtol=1e-4, atol=1e-5
    )
    assert corrected.genotypes[where] == cell


def test_each_elite_is_seen_again_by_itself_and_nothing_else_is():
  setup, repertoire = _filled()
  occupied = np.flatnonzero(repertoire.occupied)
  # Eight at once.
  assert occupied.size > 8 and occupied.size % 8
  found = _reevaluate()(repertoire, _KEY)
  assert found.cells.tolist() == occupied.tolist()
  assert found.env_steps == occupied.size * 2 * 5  # Episodes of five steps.
  _assert_is(found.corrected, _one_by_one(setup, repertoire))


def test_the_same_programs_look_at_any_number_of_elites():
  _, repertoire = _filled()
  whole = _reevaluate()(repertoire, _KEY)
  for number in (0, 1, 5):
    chosen = _with_cells(repertoire, whole.cells[:number])
    assert compilations.of(_look_at, chosen) == 0
    found = _look_at(chosen)
    np.testing.assert_array_equal(found.fitness, whole.fitness[:number])
    assert bool(number) == np.any(found.corrected.occupied)


def _look_at(repertoire):
  return _reevaluate()(repertoire, _KEY)


def test_rows_have_what_numpy_finds_of_all_episodes():
  _, repertoire = _filled()
  found = _reevaluate()(repertoire, _KEY)
  row = reevaluation.row(repertoire, found, 100.0)
  fitness, descriptors = (
    np.asarray(x, np.float64) for x in (found.fitness, found.descriptors)
  )
  best = {}
  places = np.clip(descriptors.mean(1), -2, 2)
  for value, place in zip(fitness.mean(1), places, strict=True):
    cell = tuple(np.minimum((place + 2) / 4 * 6, 5).astype(int))
    best[cell] = max(value, best.get(cell, -np.inf))
  corrected = {
    "qd_score": sum(best.values()) + 100 * len(best),
    "coverage": 100 * len(best) / 36,
    "max_fitness": max(best.values()),
  }
  seen = np.asarray(repertoire.fitness, np.float64)[found.cells]
  apparent = {
    "qd_score": np.sum(seen + 100),
    "coverage": 100 * seen.size / 36,
    "max_fitness": seen.max(),
  }
  # Somebody was lucky.
  assert apparent["qd_score"] > corrected["qd_score"]
  expected = {
    **{f"qd/corrected_{name}": x for name, x in corrected.items()},
    **{f"qd/lost_{x}": apparent[x] - corrected[x] for x in corrected},
    "qd/fitness_spread": np.sqrt(fitness.var(1) * 2).mean(),
    "qd/descriptor_spread": np.sqrt(descriptors.var(1) * 2).mean(),
    "qd/reevaluation_env_steps": seen.size * 2 * 5,
  }
  assert row == pytest.approx(expected, rel=1e-4, abs=1e-4)
  nobody_looked = reevaluation.row(repertoire, None, 100.0)
  assert nobody_looked.keys() == row.keys()
  assert np.isnan(list(nobody_looked.values())).all()


def test_one_episode_says_nothing_of_how_far_episodes_differ():
  values = np.array([[[1.0, 2.0]], [[3.0, 4.0]]])
  assert np.isnan(reevaluation.spreads(values)).all()
  assert reevaluation.spreads(np.array([[1.0, 3.0]])) == np.sqrt([2.0])


def test_batches_are_what_a_generation_evaluates_and_devices_share():
  def size(num_devices, num_reevaluations, **settings):
    setup = common.repertoire_setup(variations=8, **settings)
    mesh = jax.sharding.AbstractMesh((num_devices,), ("population",))
    return reevaluation.batch_size(
      setup._replace(mesh=mesh), num_reevaluations
    )

  # As many episodes as a generation has, 12 x 2, but no more agents.
  assert [size(1, n) for n in (1, 2, 3, 24, 25)] == [12, 12, 8, 1, 1]
  # Or one agent for each device.
  assert [size(4, n) for n in (2, 5, 24)] == [12, 4, 4]
  assert size(1, 1, with_pbt=False) == 8
