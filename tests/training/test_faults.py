"""Faults put into agents on purpose, to see that they stay where they are.

NaN or infinity anywhere in one agent touches no other agent, bit for bit; such
an agent is replaced at the next decision and counted, and neither enters a
repertoire nor displaces an elite. What environments return in training is left
out, and no agent is replaced for that. Faults are data, so that each of the
compiled generations serves all of them.
"""

import functools

import jax
import numpy as np
import pytest

from tests.controllers import common as controllers_common
from tests.training import common

_SIZE = 4
# What has a fault, of which members, the number that is put there, and where.
_FAULTS = {
  "policy": ("learner/point", (2,), np.nan),
  "critic": ("learner/critic", (0, 1, 3), np.inf),
  "replay": ("replay/storage/reward", (2,), np.inf),
  "extras": ("replay/storage/extras", (0, 1, 3), np.nan),
  "rate": ("hyperparams/learning_rate", (0, 1, 3), np.nan),
  # The action is 1 then, after which a reward isn't finite.
  "evaluation": ("learner/point", (2,), 9.0, 1)}


def _generations(*fault):
  """A generation with a fault, or without one, and the next one."""
  trainer = common.scripted_trainer()
  base = _base()
  first = trainer.step(common.broken(base, *fault) if fault else base)
  return first, trainer.step(first[0])


@functools.cache
def _base():
  trainer = common.scripted_trainer()
  return trainer.step(trainer.first)[0]


_faultless = functools.cache(_generations)


def _others(where):
  return [i for i in range(_SIZE) if i not in where]


def _is_finite(state):
  """Whether all is finite but for what environments keep to themselves."""
  return common.all_finite(
    (state.members.learner, state.members.replay, state.hyperparams))


def _assert_others_same(generations, expected, where):
  """Compares the members without a fault bit for bit."""

  def of_members(state, report):
    return common.leaves(
      (state.members, state.hyperparams, report.evaluation, report.fitness,
       report.metrics, report.num_updates, report.decision.operator))

  for actual, faultless in zip(generations, expected, strict=True):
    actual, faultless = of_members(*actual), of_members(*faultless)
    assert actual.keys() == faultless.keys()
    for name, x in actual.items():
      for i in _others(where):
        assert x[i].tobytes() == faultless[name][i].tobytes(), (name, i)


@pytest.mark.parametrize("fault", _FAULTS.values(), ids=_FAULTS)
def test_a_fault_stays_with_its_member_which_is_replaced_at_once(fault):
  where, generations = fault[1], _generations(*fault)
  _assert_others_same(generations, _faultless(), where)
  (state, report), (later, next_report) = generations
  assert np.flatnonzero(np.isnan(report.fitness)).tolist() == list(where)
  assert np.flatnonzero(~report.finite).tolist() == list(where)
  returns = np.where(report.finite, report.evaluation.returns.mean(1), -np.inf)
  assert int(report.best.member) == np.argmax(returns)
  parents = report.decision.parents
  for i, parent in enumerate(parents.tolist()):
    assert parent in _others(where) and (parent == i) == (i not in where)
  assert np.flatnonzero(report.decision.operator).tolist() == list(where)
  # All of it, whatever its settings say of children that are sound.
  for part in ("learner", "replay"):
    common.assert_bits_equal(
      getattr(state.members, part),
      jax.tree.map(lambda x: x[parents], getattr(state.members, part)))
  # Its environments too, which draw by its own key from then on.
  points = [x.members.environment.obs for x in (state, later)]
  for i in where:
    np.testing.assert_array_equal(points[0][i], points[0][parents[i]])
    assert not np.array_equal(points[1][i], points[1][parents[i]])
  assert _is_finite(state) and _is_finite(later)
  assert np.all(next_report.finite)
  assert next_report.decision.parents.tolist() == list(range(_SIZE))


def test_what_environments_return_in_training_is_left_out_and_replaces_none():
  generations = _generations("environment", (2,), np.nan)
  _assert_others_same(generations, _faultless(), (2,))
  (state, report), (later, _) = generations
  assert np.all(report.finite) and not np.any(report.decision.operator)
  assert _is_finite(state) and _is_finite(later)
  # A reset makes each instance sound again.
  for name, count in (("transitions", 1), ("observations", 1), ("rewards", 0)):
    assert report.metrics[f"nonfinite_{name}"].tolist() == [0, 0, count, 0]
  seen = [16 * 2 - i for i in (0, 0, 1, 0)]
  assert state.members.learner.observations.tolist() == seen
  assert state.members.replay.size.tolist() == seen
  # What is huge is learned from, and leaves metrics finite.
  (state, report), _ = _generations("environment", (2,), 1e30)
  assert not report.metrics["nonfinite_transitions"].any()
  assert np.all(state.members.replay.size == 32)
  assert np.all(report.metrics["observation_std"] < 10)


def test_an_infinity_that_environments_keep_to_themselves_is_no_fault():
  for state, report in _faultless():
    assert np.isinf(state.members.environment.metrics["deadline"]).all()
    assert np.all(report.finite)


def test_where_all_have_a_fault_all_begin_anew():
  everyone = tuple(range(_SIZE))
  (state, report), _ = _generations("learner/critic", everyone, np.nan)
  assert not np.any(report.finite)
  assert report.decision.parents.tolist() == list(everyone)
  assert np.all(report.decision.operator == controllers_common.REINITIALISE)
  # Other hyperparameters, since none is known to do well with the old ones.
  before, after = (x.hyperparams["learning_rate"] for x in (_base(), state))
  assert np.isfinite(after).all() and np.all(after != before)
  trainer = common.scripted_trainer()
  restarted = trainer.restart(state)
  assert _is_finite(restarted)
  assert int(restarted.generation) == int(state.generation)
  common.assert_bits_equal(restarted.hyperparams, state.hyperparams)
  first, new = (
    np.asarray(x.members.learner.point) for x in (trainer.first, restarted))
  assert not np.any(new == first)
  # The window must not hold the returns of those that are gone.
  assert np.isnan(restarted.population.recent_fitness).all()
  later, report = trainer.step(restarted)
  assert np.all(report.finite) and _is_finite(later)


def test_a_member_whose_steps_never_count_keeps_no_other_from_learning():
  trainer = common.tuned_trainer()
  first = trainer.first

  def acting_with_nan(*members):
    wanted = np.isin(np.arange(_SIZE), members).astype(np.float32)
    hyperparams = first.hyperparams | {"parent": wanted}
    return trainer.step(common.changed(first, hyperparams))

  state, report = acting_with_nan(1)
  _assert_others_same([(state, report)], [acting_with_nan()], (1,))
  # It stays as it is, but for what it has seen, and isn't replaced: what the
  # environments hold at the end is the agent's no more than the steps are.
  assert report.num_updates[1] == 0 and state.members.replay.size[1] == 0
  point = first.members.learner.point
  np.testing.assert_array_equal(state.members.learner.point[1], point[1])
  assert np.isnan(state.members.environment.info["next_observation"][1]).any()
  assert report.finite.all() and not report.decision.operator.any()
  assert report.metrics["nonfinite_transitions"].tolist() == [0, 16, 0, 0]
  # The agent's own fault, not the environment's.
  assert not report.metrics["nonfinite_observations"].any()
  # Where no step is ever finite, none learns.
  state, report = acting_with_nan(*range(_SIZE))
  assert not report.num_updates.any() and not state.members.replay.size.any()
  common.assert_bits_equal(state.members.learner.point, point)
