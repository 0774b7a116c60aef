"""Tests of reading what runs wrote."""

import pytest

from qdrl_haiku import reports
from tests.reports import common


def test_rows_and_settings_are_read(tmp_path):
  directory = common.write_population(tmp_path / "one", seed=7)
  with (directory.path / "pbt_members.jsonl").open("a") as file:
    file.write('{"generation": 5, "st')  # It's just writing a row.
  (run,) = reports.read_runs([str(tmp_path / "one")])
  assert run.name == "one"
  assert run.settings == common.SETTINGS | {"seed": 7}
  assert run.versions["python"]
  assert [row["step"] for row in run.metrics] == [100, 200, 300, 400]
  assert (len(run.members), len(run.lineage), run.skills) == (12, 6, [])
  # Seed and place are not its own.
  assert set(common.SETTINGS) - set(run.identity) == {"seed", "logdir"}


def test_runs_of_one_name_are_told_apart_by_their_places(tmp_path):
  for folder in ("a", "b"):
    (tmp_path / folder / "run").mkdir(parents=True)
    (tmp_path / folder / "run" / "config.json").write_text("{}")
  runs = reports.read_runs([str(tmp_path / x / "run") for x in "ab"])
  assert [run.name for run in runs] == ["a/run", "b/run"]
  # They have just begun.
  assert runs[0].metrics == runs[0].members == runs[0].lineage == []
  assert runs[0].versions == {}


@pytest.mark.parametrize(("file", "line", "message"), [
  ("metrics.jsonl", "nothing", "metrics.jsonl is damaged in line 3"),
  (
    "pbt_members.jsonl",
    '{"generation": 1, "step": 1, "member": "x", "hyperparams": {}}',
    "pbt_members.jsonl is damaged in line 3: member is 'x'; remove the line",
  ),
])
def test_damaged_rows_are_named(file, line, message, tmp_path):
  directory = common.write_population(tmp_path / "run")
  path = directory.path / file
  lines = path.read_text().splitlines()
  path.write_text("\n".join([*lines[:2], line, *lines[2:]]) + "\n")
  with pytest.raises(ValueError, match=message):
    reports.read_runs([str(tmp_path / "run")])
