"""Tests of reading what runs wrote, and of runs that differ in seeds alone."""

import numpy as np
import pytest

from qdrl_haiku.programs import reports
from qdrl_haiku.programs.reports import aggregation
from qdrl_haiku.programs.storage.directory import RunDirectory
from tests.programs.reports import common


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
  ("pbt_members.jsonl",
   '{"generation": 1, "step": 1, "member": "x", "hyperparams": {}}',
   "pbt_members.jsonl is damaged in line 3: member is 'x'; remove the line")])
def test_damaged_rows_are_named(file, line, message, tmp_path):
  directory = common.write_population(tmp_path / "run")
  path = directory.path / file
  lines = path.read_text().splitlines()
  path.write_text("\n".join([*lines[:2], line, *lines[2:]]) + "\n")
  with pytest.raises(ValueError, match=message):
    reports.read_runs([str(tmp_path / "run")])


def _runs(tmp_path, *changes):
  paths = []
  for i, change in enumerate(changes):
    paths.append(str(tmp_path / f"run{i}"))
    common.write_population(paths[-1], logdir=paths[-1], **change)
  return reports.read_runs(paths)


def test_runs_are_together_if_all_but_seed_and_place_is_equal(tmp_path):
  runs = _runs(
    tmp_path, {"seed": 0}, {"seed": 0, "learner": "td3"}, {"seed": 5})
  first, second = aggregation.aggregate_runs(runs)
  assert [run.name for run in first.runs] == ["run0", "run2"]
  assert [run.name for run in second.runs] == ["run1"]
  assert (first.label, second.label) == ("learner=sac", "learner=td3")
  # Those that differ in much are called by their runs.
  settings = runs[1].settings | {"learner": "x" * 70}
  runs[1] = runs[1]._replace(settings=settings)
  labels = [group.label for group in aggregation.aggregate_runs(runs)]
  assert labels == ["run0 and 1 more", "run1"]


def test_seeds_become_their_interquartile_mean_with_an_interval(tmp_path):
  scales = [1.0, 1.5, 0.2, 4.0]
  runs = _runs(
    tmp_path, *({"seed": i, "scale": x} for i, x in enumerate(scales)))
  (group,) = aggregation.aggregate_runs(runs)
  found = aggregation.aggregate_curves("all", group.series("pbt/best_return"))
  assert found.steps == [100, 200, 300, 400]
  returns = np.outer(common.RETURNS.max(axis=1), scales)
  # Of four, the middle two.
  np.testing.assert_allclose(found.values, 1.25 * returns[:, 0])
  assert np.all(np.array(found.low) < np.array(found.high))
  # One seed has no interval.
  one = aggregation.aggregate_curves("one", group.series("pbt/best_return")[:1])
  assert (one.name, one.values) == ("one", [3, 6, 7, 9])
  assert one.low == one.high == one.values


def test_seeds_count_by_generation_up_to_where_all_of_them_are(tmp_path):
  for i, steps in enumerate([[4, 9, 20, 30], [8, 11, 21]]):
    directory = RunDirectory(tmp_path / f"run{i}")
    directory.begin(common.SETTINGS | {"seed": i})
    rows = [
      {"generation": g, "step": step, "qd/qd_score": 10.0 * g + i}
      for g, step in enumerate(steps, start=1)]
    directory.append("metrics.jsonl", rows)
  runs = reports.read_runs([str(tmp_path / f"run{i}") for i in (0, 1)])
  (group,) = aggregation.aggregate_runs(runs)
  found = aggregation.aggregate_curves("all", group.series("qd/qd_score"))
  assert found.generations == [1, 2, 3]
  # Means of the two.
  assert found.steps == [6, 10, 20]
  assert found.values == [10.5, 20.5, 30.5]
