"""Tests of what is said where no member is finite, and how a run ends then."""

import types

import jax.numpy as jnp
import numpy as np
import pytest

from qdrl_haiku.programs.runs import divergence
from tests.training import common

_SETUP = common.setup()
_NOT_FINITE = ": not finite in the environment are its "


def _report(finite, learned=True, **metrics):
  return types.SimpleNamespace(
    finite=np.array([False, finite]), num_updates=np.array([learned, learned]),
    metrics={name: np.array([0.0, x]) for name, x in metrics.items()})


def _num_in_a_row(*reports):
  number = 0
  for report in reports:
    number = divergence.num_diverged_in_a_row(number, report)
  return number


def test_generations_in_which_nothing_is_learned_end_no_row():
  lost, sound = _report(finite=False), _report(finite=True)
  assert _num_in_a_row(lost, lost) == 2
  assert _num_in_a_row(lost, lost, sound, lost) == 1
  waits = _report(finite=True, learned=False)
  assert _num_in_a_row(lost, waits, lost, waits, lost) == 3


@pytest.mark.parametrize(("in_a_row", "of", "is_lost"), [
  (0, 1, False), (2, 3, False), (2, 2, True), (3, 40, True)])
def test_a_run_is_lost_after_three_in_a_row(in_a_row, of, is_lost):
  if is_lost:
    words = f"last {in_a_row} of {of} .*reward_scaling"
    with pytest.raises(divergence.EndedDiverged, match=words):
      divergence.check_end_without_divergence(in_a_row, of)
  else:
    divergence.check_end_without_divergence(in_a_row, of)


@pytest.fixture(scope="module")
def members():
  return common.init(_SETUP).members


@pytest.mark.parametrize(("values", "counts", "expected"), [
  # Where no learner is finite, what is stored may say why.
  ({"reward": 1e9}, {}, ""),
  ({"next_observation": 3e25, "reward": -1e20}, {},
   ": the environment returns observations of 3e+25 and rewards of 1e+20"),
  # Where they are, what was left out does.
  (None, {}, _NOT_FINITE + "rewards in evaluation"),
  (None, {"observations": 2, "rewards": 3},
   _NOT_FINITE + "observations (2 in training) and rewards (3 in training)")])
def test_environments_may_be_the_cause(values, counts, expected, members):
  if values is not None:
    point = jnp.full_like(members.learner.point, jnp.nan)
    members = members._replace(learner=members.learner._replace(point=point))
    storage = members.replay.storage
    storage = storage._replace(
      **{x: getattr(storage, x).at[2, 7].set(y) for x, y in values.items()})
    members = members._replace(replay=members.replay._replace(storage=storage))
  counts = {f"nonfinite_{name}": x for name, x in counts.items()}
  report = _report(finite=False, **counts)
  assert divergence.cause_of_divergence(_SETUP, members, report) == expected
