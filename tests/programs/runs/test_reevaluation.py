"""Tests of a second look at elites, with tiny agents."""

import dataclasses
import functools

import jax
import numpy as np
import pytest

from qdrl_haiku import actors, distributed
from qdrl_haiku.programs.artifacts import statistics
from qdrl_haiku.programs.runs import reevaluation
from tests import compilations
from tests.programs.reports import common as reports_common
from tests.training import common

_KEY = jax.random.key(99)


@functools.cache
def _filled():
  """A setup and a repertoire of eleven new agents, fitter than any can be.

  A generation has eight variations, and two episodes of each.
  """
  mesh = distributed.population_mesh(1, jax.devices()[:1])
  setup = common.repertoire_setup(with_pbt=False, mesh=mesh, variations=8)
  return setup, reports_common.agents(
    setup.learner, setup.map_elites.container.tessellation, np.arange(2, 35, 3))


@functools.cache
def _reevaluate():
  return reevaluation.make_reevaluate(_filled()[0], 2)


def _look_at(repertoire):
  """Looks at each elite twice."""
  return _reevaluate()(repertoire, (), _KEY)


def test_each_elite_is_seen_again_by_itself_and_nothing_else_is():
  setup, repertoire = _filled()
  occupied = np.flatnonzero(repertoire.occupied)
  # Eight at once.
  assert occupied.size > 8 and occupied.size % 8
  found = _look_at(repertoire)
  assert found.cells.tolist() == occupied.tolist()
  assert found.env_steps == occupied.size * 2 * 5  # Episodes of five steps.
  chosen = common.member(repertoire.genotypes.genotype, occupied)
  expected = actors.evaluate(
    setup.eval_env, setup.learner,
    jax.vmap(setup.learner.from_genotype)(chosen),
    jax.vmap(jax.random.fold_in, (None, 0))(_KEY, occupied), 2,
    setup.eval_env.descriptor.function)
  np.testing.assert_allclose(found.fitness, expected.returns, rtol=1e-4)
  np.testing.assert_allclose(
    found.descriptors, expected.descriptors, rtol=1e-4, atol=1e-5)
  corrected = found.corrected
  elites = corrected.genotypes[corrected.occupied]
  assert len(set(elites.tolist())) == elites.size
  assert set(elites.tolist()) <= set(occupied.tolist())


def test_the_same_programs_look_at_any_number_of_elites():
  _, repertoire = _filled()
  whole = _look_at(repertoire)
  for number in (0, 5):
    fitness = np.full_like(repertoire.fitness, -np.inf)
    fitness[whole.cells[:number]] = repertoire.fitness[whole.cells[:number]]
    chosen = dataclasses.replace(repertoire, fitness=fitness)
    assert compilations.of(_look_at, chosen) == 0
    fitness = _look_at(chosen).fitness
    np.testing.assert_array_equal(fitness, whole.fitness[:number])


def test_rows_have_what_numpy_finds_of_all_episodes():
  _, repertoire = _filled()
  found = _look_at(repertoire)
  row = reevaluation.reevaluation_row(repertoire, found, 100.0)
  fitness, descriptors = (
    np.asarray(x, np.float64) for x in (found.fitness, found.descriptors))
  best = {}
  places = np.clip(descriptors.mean(1), -2, 2)
  for value, place in zip(fitness.mean(1), places, strict=True):
    cell = tuple(np.minimum((place + 2) / 4 * 6, 5).astype(int))
    best[cell] = max(value, best.get(cell, -np.inf))
  corrected = {
    "qd_score": sum(best.values()) + 100 * len(best),
    "coverage": 100 * len(best) / 36,
    "max_fitness": max(best.values())}
  seen = np.asarray(repertoire.fitness, np.float64)[found.cells]
  apparent = {
    "qd_score": np.sum(seen + 100), "coverage": 100 * seen.size / 36,
    "max_fitness": seen.max()}
  # Somebody was lucky.
  assert apparent["qd_score"] > corrected["qd_score"]
  expected = {
    **{f"qd/corrected_{name}": x for name, x in corrected.items()},
    **{f"qd/lost_{x}": apparent[x] - corrected[x] for x in corrected},
    "qd/fitness_spread": np.sqrt(fitness.var(1) * 2).mean(),
    "qd/descriptor_spread": np.sqrt(descriptors.var(1) * 2).mean(),
    "qd/reevaluation_env_steps": seen.size * 2 * 5}
  assert row == pytest.approx(expected, rel=1e-4, abs=1e-4)
  nobody_looked = reevaluation.reevaluation_row(repertoire, None, 100.0)
  assert nobody_looked.keys() == row.keys()
  assert np.isnan(list(nobody_looked.values())).all()


def test_one_episode_says_nothing_of_how_far_episodes_differ():
  values = np.array([[[1.0, 2.0]], [[3.0, 4.0]]])
  assert np.isnan(statistics.episode_spreads(values)).all()
  values = np.array([[1.0, 3.0]])
  assert statistics.episode_spreads(values) == np.sqrt([2.0])


def test_batches_are_what_a_generation_evaluates_and_devices_share():
  def size(num_devices, num_reevaluations, **settings):
    setup = common.repertoire_setup(variations=8, **settings)
    mesh = jax.sharding.AbstractMesh((num_devices,), ("population",))
    return reevaluation.reevaluation_batch_size(
      setup._replace(mesh=mesh), num_reevaluations)

  # As many episodes as a generation has, 12 x 2, but no more agents.
  assert [size(1, n) for n in (1, 2, 3, 24, 25)] == [12, 12, 8, 1, 1]
  # Or one agent for each device.
  assert [size(4, n) for n in (2, 5, 24)] == [12, 4, 4]
  assert size(1, 1, with_pbt=False) == 8
