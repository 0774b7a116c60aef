"""Tests of generations that fill a repertoire, with tiny agents."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qdrl_haiku import actors, controllers, map_elites, training
from qdrl_haiku.prng import OfGeneration
from qdrl_haiku.programs import experiment
from qdrl_haiku.training import quality_diversity
from qdrl_haiku.training.repertoires import emitters
from tests.training import common

_KEY = jax.random.key(3)
_SIZE, _VARIATIONS = 4, common.NUM_VARIATIONS
_SETUP = common.repertoire_setup(shape=(32, 32))


@pytest.fixture(scope="module")
def trainer():
  return common.Trainer(_SETUP, _KEY)


@pytest.fixture(scope="module")
def history(trainer):
  return trainer.history()


@jax.jit
def _evaluated(genotypes, generation):
  """Mean fitness and descriptors, and steps, of agents evaluated alone."""
  key = jax.random.fold_in(
    jax.random.fold_in(_KEY, generation), OfGeneration.EVALUATE)
  places = jnp.arange(genotypes.statistic.shape[0])
  evaluation = actors.evaluate(
    _SETUP.eval_env, _SETUP.learner,
    jax.vmap(_SETUP.learner.from_genotype)(genotypes),
    jax.vmap(jax.random.fold_in, (None, 0))(key, places),
    _SETUP.config.num_eval_episodes, _SETUP.eval_env.descriptor.function)
  return (
    jnp.mean(evaluation.returns, 1), jnp.mean(evaluation.descriptors, 1),
    jnp.sum(evaluation.lengths))


def _cell(descriptor):
  x, y = np.minimum((np.clip(descriptor, -2, 2) + 2) * 8, 31).astype(int)
  return 32 * x + y


def test_the_first_repertoire_holds_random_agents(trainer):
  @jax.jit
  @jax.vmap
  def genotype(i):
    key = jax.random.fold_in(jax.random.fold_in(_KEY, 0), i)
    return _SETUP.learner.genotype(_SETUP.learner.init(key))

  genotypes = genotype(jnp.arange(common.NUM_INITIAL))
  *results, steps = jax.device_get(_evaluated(genotypes, 0))
  # A plain loop over individuals: {cell: (fitness, descriptor, point)}.
  cells = {}
  for individual in zip(*results, genotypes.policy_params, strict=True):
    cell = _cell(individual[1])
    if cell not in cells or individual[0] > cells[cell][0]:
      cells[cell] = individual
  found = trainer.first.repertoire
  assert np.flatnonzero(found.fitness > -np.inf).tolist() == sorted(cells)
  for cell, individual in cells.items():
    stored = (found.fitness, found.descriptors, found.genotypes[0][0])
    for x, y in zip(stored, individual, strict=True):
      np.testing.assert_allclose(x[cell], y, rtol=1e-4, atol=1e-5)
  # Episodes of five steps, two of each.
  assert int(trainer.first.initial_steps) == 5 * 2 * common.NUM_INITIAL == steps
  assert int(trainer.first.generation) == 0


def test_trained_members_are_evaluated_and_offered_beside_variations(history):
  for generation in (1, 2):
    state, report = (x[generation - i] for i, x in enumerate(history))
    genotypes = _SETUP.learner.genotype(state.members.learner)
    fitness, descriptors, _ = _evaluated(genotypes, generation)
    # The others have been replaced since.
    stays = report.decision.operator == 0
    stays &= report.sampled_cells < 0
    assert np.sum(stays) >= 2
    np.testing.assert_allclose(report.fitness[stays], fitness[stays], rtol=1e-4)
    for i in np.flatnonzero(stays):
      assert state.repertoire.fitness[_cell(descriptors[i])] >= (
        report.fitness[i] - 1e-4)
    # Two episodes of five steps of each.
    assert np.sum(report.evaluation_steps) == (_SIZE + _VARIATIONS) * 2 * 5
    assert report.best.fitness >= np.max(report.fitness)


def test_an_elite_takes_the_place_of_a_member_but_not_its_replay(history):
  for before, state, report in zip(
    history[0], history[0][1:], history[1], strict=False
  ):
    cells = report.sampled_cells
    (i,) = np.flatnonzero(cells >= 0)
    elite = common.member(state.repertoire.genotypes, cells[i])
    common.assert_bits_equal(
      common.member(state.members.learner, i),
      _SETUP.learner.from_genotype(elite.genotype))
    for tree in (state.hyperparams, report.next_hyperparams):
      common.assert_bits_equal(common.member(tree, i), elite.hyperparams)
    assert i != np.argmax(report.fitness)
    # What was there before this generation is still there.
    seen = int(before.members.replay.size[i])
    old, new = (
      x.members.replay.storage.reward[i, :seen] for x in (before, state))
    if seen < 48:
      np.testing.assert_array_equal(new, old)


def test_where_all_diverge_elites_stay(history, trainer):
  state, report = trainer.step(common.broken(history[0][2]))
  assert not np.any(report.finite)
  restarted = jax.device_get(trainer.restart(state))
  assert common.all_finite(restarted.members)
  common.assert_bits_equal(restarted.hyperparams, state.hyperparams)
  common.assert_bits_equal(restarted.repertoire, state.repertoire)
  cells = report.sampled_cells
  (i,) = np.flatnonzero(cells >= 0)
  np.testing.assert_array_equal(
    restarted.members.learner.point[i],
    state.repertoire.genotypes.genotype.policy_params[cells[i]])


def test_variations_have_new_weights_and_the_rest_of_the_first_parent():
  def elites(start):
    numbers = start + jnp.arange(6.0)
    return map_elites.Elite(
      common.Genotype(jnp.stack([numbers, -numbers], 1), numbers),
      {"learning_rate": 0.01 + 1e-3 * numbers, "parent": jnp.zeros(6)})

  first, second = elites(0.0), elites(10.0)
  config = controllers.PBTConfig(perturbation_factors=(0.5, 2.0))
  vary = training.vary_elites(0, 0.5, controllers.explore(config, common.SPACE))
  child = jax.jit(vary)(_KEY, first, second)
  np.testing.assert_array_equal(
    child.genotype.statistic, first.genotype.statistic)
  # Without noise, each is on the line through its parents, (10, -10) apart.
  step = child.genotype.policy_params - first.genotype.policy_params
  np.testing.assert_allclose(step[:, 0], -step[:, 1], rtol=1e-5)
  assert len(set(step[:, 0].tolist())) == 6
  factors = child.hyperparams["learning_rate"]
  factors /= first.hyperparams["learning_rate"]
  np.testing.assert_allclose(np.abs(np.log2(factors)), 1, rtol=1e-5)
  assert not np.any(child.hyperparams["parent"])


def _full_of_bad_elites(state):
  """A state all of whose cells hold the best elite, as if worse than any agent.

  So that each agent that is let in where it should not be displaces an elite.
  """
  repertoire = state.repertoire
  best = np.argmax(repertoire.fitness)
  genotypes = jax.tree.map(
    lambda x: np.broadcast_to(x[best], x.shape), repertoire.genotypes)
  fitness = np.full_like(repertoire.fitness, -1e6)
  return state._replace(repertoire=dataclasses.replace(
    repertoire, genotypes=genotypes, fitness=fitness))


@pytest.fixture(scope="module")
def faultless(trainer, history):
  """A state with a full repertoire, and the generation that follows."""
  base = _full_of_bad_elites(history[0][1])
  return base, *trainer.step(base)


@pytest.mark.parametrize(("column", "number"), [
  # After an action of 1 the descriptor, or the reward, isn't finite.
  (0, np.nan), (0, 9.0), (1, 9.0)])
def test_an_agent_with_a_fault_enters_and_disturbs_nothing(
  column, number, trainer, faultless
):
  base, expected, sound = faultless
  state, report = trainer.step(
    common.broken(base, "learner/point", [2], number, column))
  cells = [_cell(x) for x in sound.evaluation.descriptors.mean(1)]
  # Without a fault each agent gets a cell of its own.
  num_new = np.sum(expected.repertoire.fitness > -1e6)
  assert num_new == _SIZE + common.NUM_VARIATIONS == len({*cells}) + 2
  assert report.finite.tolist() == [True, True, False, True]
  np.testing.assert_array_equal(
    report.fitness, np.where(report.finite, sound.fitness, np.nan))
  # It's replaced by a sound member, or by an elite.
  assert report.sampled_cells[2] >= 0 or report.decision.parents[2] != 2
  assert common.all_finite((state.members.learner, state.repertoire))
  assert np.isfinite(report.best.fitness)
  actual, before, wanted = (
    common.leaves((x.repertoire.genotypes, x.repertoire.fitness))
    for x in (state, base, expected))
  for name, x in actual.items():
    same = wanted[name].copy()
    same[cells[2]] = before[name][cells[2]]
    assert x.tobytes() == same.tobytes(), name


def _num_cells(**more):
  """How many of 1,024 cells the first 64 agents fill."""
  values = {
    "env_name": "arm", "learner": "td3", "emitter": "pga",
    "hidden_layer_sizes": ("8",), "num_initial_genotypes": 64,
    "num_eval_episodes": 1, "num_generations": 1} | more
  setup = experiment.build(experiment.TRAIN_ME_PBT.configure(values))

  @jax.jit
  def cells(key):
    initial = quality_diversity.make_trainer(setup).draw(key, 0, 64)
    first = emitters.random_elites(setup, jax.random.split(key, 64))
    _, evaluated = quality_diversity.judge_elites(
      setup, first, initial.evaluation)
    return setup.map_elites.container.tessellation.cell(evaluated.descriptors)

  return len(np.unique(cells(jax.random.key(0))))


@pytest.mark.slow
def test_first_agents_differ_by_default():
  assert _num_cells() > 40
  assert _num_cells(policy_final_init="small") < 4
