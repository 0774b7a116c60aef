"""Tests of scores, tables and pictures, with numbers worked out by hand."""

import dataclasses
import math

import numpy as np
import pytest

from qdrl_haiku.programs.comparisons import plan, scores
from qdrl_haiku.programs.comparisons.scores import ALL_TASKS
from tests.programs.reports import common

_SETTINGS = plan.CompareConfig(
  metric="pbt/best_return", baseline="pbt", num_last=2, at_steps=(15, 20),
  at_minutes=(0.5,))


def _curve(task, method, seed, values, steps=None):
  steps = steps or 10 * np.arange(1, len(values) + 1)
  return scores.Curve(
    task, method, seed, np.asarray(steps, float), np.asarray(values, float),
    total_env_steps=1_000_000 * (seed + 1),
    minutes=np.linspace(0.0, seed + 0.5, len(values)))


@pytest.fixture(scope="module")
def curves():
  """Two tasks; in the second, which has another scale, PB2 is ahead."""
  return [
    _curve("maze", "pbt", 0, [0, 2, 4]),
    _curve("maze", "pbt", 1, [0, 4, 8]),
    _curve("maze", "pb2", 0, [0, 1, 5]),
    _curve("maze", "pb2", 1, [4, 4, 4]),
    _curve("ant", "pbt", 0, [-100, -100, -100]),
    _curve("ant", "pb2", 0, [100, 100, 300])]


@pytest.fixture(scope="module")
def table(curves):
  scored = scores.score_curves(curves, _SETTINGS)
  return scores.score_table(scored, _SETTINGS)


def _of(table, task, method):
  (row,) = [x for x in table if (x["task"], x["method"]) == (task, method)]
  return row


def test_a_seed_scores_its_end_its_area_a_step_and_a_minute(curves):
  score, slower, *_ = scores.score_curves(curves, _SETTINGS)
  assert (score["final"], score["area"]) == (3.0, 2.0)
  assert (score["at_15"], score["at_20"]) == (0.0, 2.0)
  # The second run's evaluations are after 0, 0.75 and 1.5 minutes.
  assert (score["at_0.5_minutes"], slower["at_0.5_minutes"]) == (4.0, 0.0)


def test_areas_are_of_the_steps_that_all_of_a_task_have():
  curves = [
    _curve("maze", "pbt", 0, [9, 0, 2], [0, 10, 30]),
    _curve("maze", "pb2", 0, [1, 1], [10, 20])]
  settings = dataclasses.replace(_SETTINGS, at_steps=(5,))
  scored = scores.score_curves(curves, settings)
  # From 10 to 20, and halfway to 2 by then.
  assert [score["area"] for score in scored] == [0.5, 1.0]
  assert scored[0]["at_5"] == 9.0
  assert np.isnan(scored[1]["at_5"])


def test_a_diverged_agent_is_the_worst_of_its_task(tmp_path):
  for name, scale in (("well", 1.0), ("ill", np.nan)):
    common.write_population(tmp_path / name, scale=scale)
  curves = [
    scores.read_scored_curves(
      plan.PlannedRun("maze", name, (0,), "train_pbt", ()), tmp_path / name,
      "pbt/best_return")[0]
    for name in ("well", "ill")]
  assert np.isnan(curves[1].values).all()
  # The best of each generation are 3, 6, 7 and 9.
  well, ill = scores.score_curves(scores.fill_diverged(curves), _SETTINGS)
  assert (well["final"], ill["final"]) == (8.0, 3.0)
  assert well["area"] > ill["area"] == 3.0


def test_what_is_measured_now_and_then_counts_where_it_was(tmp_path):
  directory = common.write_population(tmp_path / "run")
  rows = directory.rows("metrics.jsonl")
  (directory.path / "metrics.jsonl").write_text("")
  values = [math.nan, 5.0, math.nan, 7.0]
  directory.append("metrics.jsonl", [
    row | {"qd/corrected_qd_score": x}
    for row, x in zip(rows, values, strict=True)])
  (curve,) = scores.read_scored_curves(
    plan.PlannedRun("maze", "x", (0,), "train_me_pbt", ()), directory.path,
    "qd/corrected_qd_score")
  assert curve.values.tolist() == [5.0, 7.0]
  assert curve.steps.tolist() == [200.0, 400.0]


def test_a_row_is_of_the_seeds_of_a_method_on_a_task(table):
  pbt, pb2 = _of(table, "maze", "pbt"), _of(table, "maze", "pb2")
  assert (pbt["num_seeds"], pbt["final"]) == (2, 4.5)
  assert (pbt["final_low"], pbt["final_high"]) == (3.0, 6.0)
  assert (pbt["at_20"], pbt["at_20_low"], pbt["at_20_high"]) == (3, 2, 4)
  assert "improvement" not in pbt
  # 3 against 3 and 6; 4 against 3 and 6.
  assert pb2["improvement"] == pytest.approx(1.5 / 4)
  assert (pb2["at_15"], pb2["at_20"]) == (2.0, 2.5)
  assert (pbt["total_env_steps"], pbt["minutes"]) == (1_500_000, 1.0)


def test_all_tasks_are_pooled_each_on_its_own_scale(table):
  pbt, pb2 = (_of(table, ALL_TASKS, method) for method in ("pbt", "pb2"))
  # In the maze finals are from 3 to 6; the ants have 0 and 1.
  assert pbt["final"] == pytest.approx(np.mean([0, 1, 0]))
  assert pb2["final"] == pytest.approx(np.mean([0, 1 / 3, 1]))
  assert pb2["improvement"] == pytest.approx((1.5 / 4 + 1) / 2)
  assert pb2["num_seeds"] == 3


def test_what_has_no_runs_is_left_out(curves):
  def found(kept):
    table = scores.score_table(scores.score_curves(kept, _SETTINGS), _SETTINGS)
    return [(x["task"], x["method"], "improvement" in x) for x in table]

  # A task that a method has no runs of isn't pooled.
  assert found(curves[:5]) == [
    ("maze", "pbt", False), ("maze", "pb2", True), ("ant", "pbt", False)]
  # Without the baseline's runs nothing is compared with it.
  assert found(curves[2:4]) == [("maze", "pb2", False)]


def test_a_run_is_read_by_seed(tmp_path):
  common.write_population(tmp_path / "pbt")
  common.write_seeds(tmp_path / "train", 3)
  row = plan.PlannedRun("maze", "pbt", (4,), "train_pbt", ())
  (curve,) = scores.read_scored_curves(row, tmp_path / "pbt", "pbt/best_return")
  assert (curve.seed, curve.values.tolist()) == (4, [3, 6, 7, 9])
  assert curve.minutes.tolist() == [0.5, 1.0, 1.5, 2.0]
  row = plan.PlannedRun("maze", "alone", (0, 1, 2), "train", ())
  curves = scores.read_scored_curves(
    row, tmp_path / "train", "eval/episode_return")
  assert [curve.values[0] for curve in curves] == [100, 101, 102]
  # Each has a third of the time.
  expected = [[1 / 6, 1 / 3, 1 / 2]] * 3
  assert np.allclose([curve.minutes for curve in curves], expected)
  with pytest.raises(ValueError, match="for each of 3 seeds; .*eval/episode"):
    scores.read_scored_curves(row, tmp_path / "train", "pbt/best_return")
