"""Tests of what is written about agents with skills."""

import json

import numpy as np
import pytest

from qdrl_haiku import actors, environments
from qdrl_haiku.programs.runs import records
from qdrl_haiku.programs.storage.directory import RunDirectory

_RNG = np.random.default_rng(0)
# Of two members and five episodes each.
DISCRETE = np.eye(3)[np.array([[0, 1, 2, 0, 1], [2, 2, 1, 0, 1]])]
_CIRCLE = _RNG.normal(size=(2, 5, 2))
_BOUNDS = environments.Descriptor(("x", "steps"), (-10, -0.5), (10, 99.5))


def written(path, skill=DISCRETE):
  """A run's directory after two generations of the same evaluation."""
  size = skill.shape[:2]
  evaluation = actors.Evaluation(
    _RNG.normal(size=size), _RNG.integers(2, 30, size), None,
    {"skill": np.float32(skill), "diversity_return": _RNG.normal(size=size),
     "descriptor": _RNG.normal(size=(*size, 30, 2))})
  directory = RunDirectory(path)
  directory.begin({"learner": "diayn"})
  for generation in (1, 2):
    records.write_skill_records(
      directory, generation, 100 * generation, evaluation, _BOUNDS)
  return directory, evaluation


# Each episode has a continuous skill of its own.
@pytest.mark.parametrize(("skill", "count"), [(DISCRETE, 6), (_CIRCLE, 10)])
def test_a_row_per_member_and_skill_has_its_means(skill, count, tmp_path):
  directory, evaluation = written(tmp_path / "run", skill)
  rows = directory.rows("skills.jsonl")
  assert [(x["generation"], x["step"]) for x in rows] == (
    [(1, 100)] * count + [(2, 200)] * count)
  for row in rows:
    skills = evaluation.trajectory["skill"][row["member"]]
    episodes = np.all(skills == np.float32(row["skill"]), axis=1)
    for name, values in (
      ("return", evaluation.returns),
      ("diversity_return", evaluation.trajectory["diversity_return"]),
    ):
      assert row[name] == pytest.approx(
        values[row["member"], episodes].mean(), rel=1e-6)
  assert len({(x["member"], *x["skill"]) for x in rows}) == count


def test_the_arrays_are_those_of_the_evaluation(tmp_path):
  directory, evaluation = written(tmp_path / "run")
  arrays = dict(np.load(directory.path / "skills.npz"))
  expected = evaluation.trajectory | {
    "returns": evaluation.returns, "lengths": evaluation.lengths,
    "names": ["x", "steps"], "lower": [-10.0, -0.5], "upper": [10.0, 99.5]}
  assert arrays.keys() == expected.keys()
  for name, value in expected.items():
    np.testing.assert_array_equal(arrays[name], value, err_msg=name)


def test_a_diverged_members_rows_are_strict_json(tmp_path):
  _, evaluation = written(tmp_path / "run")
  returns = evaluation.returns.copy()
  returns[1] = np.nan
  records.write_skill_records(
    RunDirectory(tmp_path), 1, 100, evaluation._replace(returns=returns), None)
  lines = (tmp_path / "skills.jsonl").read_text().splitlines()
  rows = [json.loads(line, parse_constant=pytest.fail) for line in lines]
  assert [row["return"] is None for row in rows] == [False] * 3 + [True] * 3
  assert "names" not in np.load(tmp_path / "skills.npz")
