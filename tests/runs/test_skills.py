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


def _written(path, prior=common.PRIOR):
  """A run's directory after two generations of the same evaluation."""
  _, evaluation, _ = common.evaluated(prior)
  directory = RunDirectory(path)
  for generation in (1, 2):
    now = (generation, 100 * generation)
    skill_files.write_skill_files(
      directory, *now, evaluation, common.WALK.descriptor
    )
  return directory, evaluation


@pytest.mark.parametrize("prior", [common.PRIOR, common.CIRCLE])
def test_a_row_per_member_and_skill_has_means_over_its_episodes(
  prior, tmp_path
):
  directory, evaluation = _written(tmp_path, prior)
  rows = directory.rows("skills.jsonl")
  # Each episode has a continuous skill of its own.
  count = _P * (_K if prior is common.PRIOR else _N)
  assert [(x["generation"], x["step"]) for x in rows] == (
    [(1, 100)] * count + [(2, 200)] * count
  )
  for row in rows:
    skills = evaluation.trajectory["skill"][row["member"]]
    episodes = np.all(skills == np.float32(row["skill"]), axis=1)
    for name, values in (
      ("return", evaluation.returns),
      ("diversity_return", evaluation.trajectory["diversity_return"]),
    ):
      assert row[name] == pytest.approx(
        values[row["member"], episodes].mean(), rel=1e-6
      )
  assert len({(x["member"], *x["skill"]) for x in rows}) == count


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


def test_a_diverged_members_rows_are_strict_json(tmp_path):
  _, evaluation, _ = common.evaluated()
  returns = evaluation.returns.copy()
  returns[1] = np.nan
  skill_files.write_skill_files(
    RunDirectory(tmp_path), 1, 100, evaluation._replace(returns=returns),
    None,
  )  # fmt: skip
  lines = (tmp_path / "skills.jsonl").read_text().splitlines()
  rows = [json.loads(line, parse_constant=pytest.fail) for line in lines]
  assert [row["return"] is None for row in rows] == [False] * 3 + [True] * 3
  assert "names" not in np.load(tmp_path / "skills.npz")
