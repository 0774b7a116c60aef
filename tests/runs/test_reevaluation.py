"""Tests of a second look at elites, with tiny agents."""

import dataclasses
import functools

import jax
import numpy as np
import pytest

from qdrl_haiku import actors, distributed
from qdrl_haiku.runs import reevaluation
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


@pytest.fixture
def batches(monkeypatch):
  """The cells of each batch that is evaluated."""
  found = []
  compile_ = reevaluation._compiled

  def recorded(setup, function, is_seldom=False, **options):
    compiled = compile_(setup, function, is_seldom, **options)
    if is_seldom:
      return compiled

    def call(genotypes, cells, env_states):
      found.append(cells.tolist())
      return compiled(genotypes, cells, env_states)

    return call

  monkeypatch.setattr(reevaluation, "_compiled", recorded)
  return found


def _with_cells(repertoire, cells):
  """The repertoire, all but those cells emptied."""
  keep = np.isin(np.arange(repertoire.fitness.size), cells)
  return dataclasses.replace(
    repertoire, fitness=np.where(keep, repertoire.fitness, -np.inf)
  )


def _again(setup, repertoire, num_reevaluations):
  """The corrected repertoire."""
  reevaluate = reevaluation.make_reevaluate(setup, num_reevaluations)
  return reevaluate(repertoire, _KEY).corrected


def _one_by_one(setup, repertoire, num_reevaluations):
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
      num_reevaluations,
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


@pytest.mark.slow
def test_each_elite_is_seen_again_by_itself():
  setup, repertoire = _filled()
  _assert_is(
    _again(setup, repertoire, 4), _one_by_one(setup, repertoire, 4)
  )


def test_occupied_cells_alone_are_evaluated_and_few_at_once(batches):
  setup, repertoire = _filled()
  occupied = np.flatnonzero(repertoire.occupied).tolist()
  # As many episodes at once as a generation has, 8 x 2.
  for num_reevaluations, size in ((2, 8), (100, 1)):
    batches.clear()
    _again(setup, repertoire, num_reevaluations)
    assert {len(cells) for cells in batches} == {size}
    evaluated = sum(batches, [])
    assert evaluated[: len(occupied)] == occupied
    filling = evaluated[len(occupied) :]
    assert len(filling) < size
    assert set(filling) <= {occupied[-1]}
  batches.clear()
  again = _again(setup, _with_cells(repertoire, []), 2)
  assert batches == [] and not np.any(again.occupied)


def test_the_same_programs_look_at_any_number_of_elites(monkeypatch):
  setup, repertoire = _filled()
  compiled = []
  compile_ = reevaluation._compiled

  def recorded(*args, **kwargs):
    compiled.append(compile_(*args, **kwargs))
    return compiled[-1]

  monkeypatch.setattr(reevaluation, "_compiled", recorded)
  reevaluate = reevaluation.make_reevaluate(setup, 2)
  occupied = np.flatnonzero(repertoire.occupied)
  for num_elites in (1, 5, len(occupied)):
    chosen = _with_cells(repertoire, occupied[-num_elites:])
    found = reevaluate(chosen, _KEY)
    assert found.cells.tolist() == occupied[-num_elites:].tolist()
    # Episodes of five steps.
    assert found.env_steps == num_elites * 2 * 5
  assert [x._cache_size() for x in compiled] == [1, 1, 1]
  alone = _with_cells(repertoire, occupied[-1:])
  _assert_is(reevaluate(alone, _KEY).corrected, _one_by_one(setup, alone, 2))


def test_rows_have_what_numpy_finds_of_all_episodes():
  setup, repertoire = _filled()
  found = reevaluation.make_reevaluate(setup, 4)(repertoire, _KEY)
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
    "qd/fitness_spread": np.sqrt(fitness.var(1) * 4 / 3).mean(),
    "qd/descriptor_spread": np.sqrt(descriptors.var(1) * 4 / 3).mean(),
    "qd/reevaluation_env_steps": seen.size * 4 * 5,
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

  assert size(1, 1) == size(1, 2) == size(4, 2) == 4 + 8
  assert size(1, 1, with_pbt=False) == 8
  # 24 episodes at most, or one agent for each device.
  assert [size(1, n) for n in (3, 5, 24, 25)] == [8, 4, 1, 1]
  assert [size(4, n) for n in (3, 5, 24, 25)] == [8, 4, 4, 4]
