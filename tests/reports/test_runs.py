"""Tests of reading what runs wrote."""

import pytest

from qdrl_haiku import reports
from tests.reports import common


def test_rows_and_settings_are_read(tmp_path):
  common.write_population(tmp_path / "one", seed=7)
  (run,) = reports.read_runs([str(tmp_path / "one")])
  assert run.name == "one"
  assert run.settings == common.settings(seed=7)
  assert run.versions["python"]
  assert [row["step"] for row in run.metrics] == [100, 200, 300, 400]
  assert (len(run.members), len(run.lineage), run.skills) == (12, 6, [])
  # Seed and place are not its own.
  assert set(common.SETTINGS) - set(run.identity) == {"seed", "logdir"}


def test_runs_of_one_name_are_told_apart_by_their_places(tmp_path):
  for folder in ("a", "b"):
    common.write_population(tmp_path / folder / "run")
  runs = reports.read_runs([str(tmp_path / x / "run") for x in "ab"])
  assert [run.name for run in runs] == ["a/run", "b/run"]


def test_one_run_does_not_count_as_two(tmp_path):
  common.write_population(tmp_path / "run")
  with pytest.raises(ValueError, match="run is given twice"):
    reports.read_runs([str(tmp_path / "run"), f"{tmp_path}/./run/"])


def test_a_run_that_is_writing_a_row_is_read_up_to_it(tmp_path):
  directory = common.write_population(tmp_path / "run")
  with (directory.path / "pbt_members.jsonl").open("a") as file:
    file.write('{"generation": 5, "st')
  (run,) = reports.read_runs([str(tmp_path / "run")])
  assert len(run.members) == 12


def test_a_run_that_has_just_begun_has_no_rows(tmp_path):
  (tmp_path / "run").mkdir()
  (tmp_path / "run" / "config.json").write_text("{}")
  (run,) = reports.read_runs([str(tmp_path / "run")])
  assert run.metrics == run.members == run.lineage == []
  assert run.versions == {}


@pytest.mark.parametrize(
  ("file", "line", "message"),
  [
    ("metrics.jsonl", "nothing", "metrics.jsonl is damaged in line 3"),
    ("metrics.jsonl", '{"generation": 3}', "line 3: step is None; remove"),
    (
      "pbt_members.jsonl",
      '{"generation": 1, "step": 1, "member": "x", "hyperparams": {}}',
      "pbt_members.jsonl is damaged in line 3: member is 'x'; remove the line",
    ),
  ],
)
def test_damaged_rows_are_named(file, line, message, tmp_path):
  directory = common.write_population(tmp_path / "run")
  path = directory.path / file
  lines = path.read_text().splitlines()
  path.write_text("\n".join([*lines[:2], line, *lines[2:]]) + "\n")
  with pytest.raises(ValueError, match=message):
    reports.read_runs([str(tmp_path / "run")])
