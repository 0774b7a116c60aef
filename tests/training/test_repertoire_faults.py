"""Faults put into agents of a repertoire: none enters, or displaces an elite.

As in `test_faults`, they are data, and one compiled generation serves them all.
"""

import dataclasses

import jax
import numpy as np
import pytest

from qdrl_haiku.runs import metrics
from tests.training import common, faults


@pytest.fixture(scope="module")
def illuminated():
  """A repertoire whose elites are all worse than any agent, and a generation.

  So that each agent that is let in where it should not be displaces an elite.
  """
  setup = common.repertoire_setup(shape=(32, 32))
  trainer = common.Trainer(setup, jax.random.key(5))
  state, _ = trainer.step(trainer.first)
  repertoire = state.repertoire
  elite = jax.tree.map(
    lambda x: x[np.argmax(repertoire.fitness)], repertoire.genotypes
  )
  cells = jax.tree.map(
    lambda x, cells: np.broadcast_to(x, cells.shape),
    elite,
    repertoire.genotypes,
  )
  state = _with_elites(state, cells)
  return trainer, state, trainer.step(state)


def _with_elites(state, genotypes):
  """A state all of whose cells hold such elites."""
  fitness = np.full_like(state.repertoire.fitness, -1e6)
  repertoire = dataclasses.replace(
    state.repertoire, genotypes=genotypes, fitness=fitness
  )
  return state._replace(repertoire=repertoire)


def _new_cells(state):
  return set(np.flatnonzero(state.repertoire.fitness > -1e6).tolist())


def _cells(report):
  """The cell of each member, by what it was evaluated with."""
  places = np.clip(report.evaluation.descriptors.mean(1), -2, 2)
  x, y = np.minimum((places + 2) * 8, 31).astype(int).T
  return (32 * x + y).tolist()


def test_each_agent_without_a_fault_gets_a_cell(illuminated):
  trainer, _, (state, report) = illuminated
  assert np.all(report.finite)
  # So that those below are not missed for another reason.
  assert set(_cells(report)) < _new_cells(state)
  assert len(_new_cells(state)) == 4 + common.NUM_VARIATIONS


def _assert_left_out(actual, illuminated, cells):
  """Compares with the faultless repertoire, in which these cells change."""
  _, before, (expected, _) = illuminated
  assert _new_cells(actual) == _new_cells(expected) - set(cells)
  actual, before, expected = (
    common.leaves((x.genotypes, x.fitness))
    for x in (actual.repertoire, before.repertoire, expected.repertoire)
  )
  for name, x in actual.items():
    wanted = expected[name].copy()
    wanted[list(cells)] = before[name][list(cells)]
    assert x.tobytes() == wanted.tobytes(), name


def _with_repertoire(fault, state, where, code):
  if fault != "evaluation":
    return faults.inject(fault, state, where, code)
  # The actions are 1 then, after which the descriptor is NaN.
  learner = state.members.learner
  point = np.array(learner.point)
  point[np.array(where)] = 9.0
  return common.changed(state, learner=learner._replace(point=point))


@pytest.mark.parametrize("code", [faults.NAN, faults.INF])
@pytest.mark.parametrize("where", [(2,), (0, 1, 3)])
@pytest.mark.parametrize(
  "fault",
  [
    "learner/point", "learner/statistic", "learner/critic", "replay/reward",
    "hyperparams/learning_rate", "hyperparams/parent", "evaluation",
  ],
)  # fmt: skip
def test_with_a_repertoire_an_agent_with_a_fault_enters_and_disturbs_nothing(
  fault, where, code, illuminated
):
  trainer, before, expected = illuminated
  actual = trainer.step(_with_repertoire(fault, before, where, code))
  state, report = actual
  assert np.flatnonzero(~report.finite).tolist() == list(where)
  assert metrics.pbt_row(report)["pbt/num_nonfinite"] == len(where)
  others = faults.others(where)
  np.testing.assert_array_equal(
    report.fitness[others], expected[1].fitness[others]
  )
  # A critic is no part of what is stored, and what is stored is sound.
  left_out = where if fault != "learner/critic" else ()
  cells = [_cells(expected[1])[i] for i in left_out]
  _assert_left_out(state, illuminated, cells)
  # By a sound member, or by an elite.
  is_sampled = report.illumination.sampled_cells >= 0
  for i in where:
    assert is_sampled[i] or report.decision.parents[i] in others
  assert faults.is_finite(state) and common.all_finite(state.repertoire)


def test_offspring_with_a_fault_in_their_weights_never_enter(illuminated):
  trainer, before, (expected, report) = illuminated
  genotypes = before.repertoire.genotypes
  parent = genotypes.hyperparams["parent"] + 1
  marked = genotypes._replace(hyperparams=genotypes.hyperparams
                              | {"parent": parent})
  state, _ = trainer.step(_with_elites(before, marked))
  assert _new_cells(state) == set(_cells(report))
  for name in ("fitness", "descriptors"):
    np.testing.assert_array_equal(
      getattr(state.repertoire, name)[_cells(report)],
      getattr(expected.repertoire, name)[_cells(report)],
    )
