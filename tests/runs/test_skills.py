"""Tests of what is written about agents with skills."""

import json

import numpy as np
import pytest

from qdrl_haiku.runs import skill_files
from qdrl_haiku.storage.directory import RunDirectory
from tests.training import skill_common as common

_K = common.NUM_SKILLS
_P = common.POPULATION_SIZE
_N = common.NUM_EPISODES


def _written(path, prior=common.PRIOR, env=common.WALK, **config):
  """A run's directory after two generations of the same evaluation."""
  _, evaluation, _ = common.evaluated(prior, env, **config)
  directory = RunDirectory(path)
  for generation in (1, 2):
    skill_files.write(
      directory, generation, 100 * generation, evaluation, env.descriptor
    )
  return directory, evaluation


def test_a_row_per_member_and_skill_has_means_over_its_episodes(tmp_path):
  directory, evaluation = _written(tmp_path)
  rows = directory.rows("skills.jsonl")
  assert len(rows) == 2 * _P * _K
  assert {(r["generation"], r["step"]) for r in rows} == {(1, 100), (2, 200)}
  for row in rows:
    # Five episodes, three skills: dealt out one after the other.
    episodes = slice(int(np.argmax(row["skill"])), None, _K)
    assert sorted(row["skill"]) == [0.0, 0.0, 1.0]
    for name, values in (
      ("return", evaluation.returns),
      ("diversity_return", evaluation.trajectory["diversity_return"]),
    ):
      assert row[name] == pytest.approx(
        values[row["member"], episodes].mean(), rel=1e-6
      )
  assert {(r["member"], *r["skill"]) for r in rows} == {
    (member, *skill) for member in range(_P) for skill in np.eye(_K)
  }


def test_continuous_skills_have_a_row_per_episode(tmp_path):
  directory, evaluation = _written(tmp_path, common.CIRCLE)
  rows = directory.rows("skills.jsonl")[: _P * _N]
  for row in rows:
    skills_of_member = evaluation.trajectory["skill"][row["member"]]
    (episode,) = np.flatnonzero(
      np.all(skills_of_member == np.float32(row["skill"]), axis=1)
    )
    assert row["return"] == pytest.approx(
      float(evaluation.returns[row["member"], episode])
    )
  assert len({tuple(row["skill"]) for row in rows}) == _P * _N


def test_the_arrays_are_those_of_the_evaluation(tmp_path):
  directory, evaluation = _written(tmp_path)
  arrays = dict(np.load(directory.path / "skills.npz"))
  expected = evaluation.trajectory | {
    "returns": evaluation.returns, "lengths": evaluation.lengths,
    "names": ["x", "steps"], "lower": [-10.0, -0.5], "upper": [10.0, 99.5],
  }  # fmt: skip
  assert arrays.keys() == expected.keys()
  for name, value in expected.items():
    np.testing.assert_array_equal(arrays[name], value, err_msg=name)
  assert sorted(x.name for x in tmp_path.iterdir()) == [
    "skills.jsonl", "skills.npz"
  ]  # fmt: skip


def test_a_diverged_members_rows_are_strict_json(tmp_path):
  _, evaluation, _ = common.evaluated()
  returns = evaluation.returns.copy()
  returns[1] = np.nan
  skill_files.write(
    RunDirectory(tmp_path), 1, 100, evaluation._replace(returns=returns),
    None,
  )  # fmt: skip
  lines = (tmp_path / "skills.jsonl").read_text().splitlines()
  rows = [json.loads(line, parse_constant=pytest.fail) for line in lines]
  assert [row["return"] is None for row in rows] == [False] * 3 + [True] * 3
  assert "names" not in np.load(tmp_path / "skills.npz")
