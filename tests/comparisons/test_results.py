"""Tests of what comes of runs, with numbers worked out by hand."""

import numpy as np
import pytest

from qdrl_haiku import comparisons
from qdrl_haiku.comparisons.results import ALL_TASKS
from tests.reports import common

_SETTINGS = comparisons.Settings(
  metric="pbt/best_return", baseline="pbt", num_last=2, at_steps=(15, 20)
)


def _curve(task, method, seed, values, steps=None):
  steps = steps or 10 * np.arange(1, len(values) + 1)
  return comparisons.Curve(
    task, method, seed, np.asarray(steps, float), np.asarray(values, float),
    total_env_steps=1_000_000 * (seed + 1), minutes=seed + 0.5,
  )  # fmt: skip


@pytest.fixture(scope="module")
def curves():
  """Two tasks; in the second, which has another scale, PB2 is ahead."""
  return [
    _curve("maze", "pbt", 0, [0, 2, 4]),
    _curve("maze", "pbt", 1, [0, 4, 8]),
    _curve("maze", "pb2", 0, [0, 1, 5]),
    _curve("maze", "pb2", 1, [4, 4, 4]),
    _curve("ant", "pbt", 0, [-100, -100, -100]),
    _curve("ant", "pb2", 0, [100, 100, 300]),
  ]


@pytest.fixture(scope="module")
def lines(curves):
  scored = comparisons.score(curves, _SETTINGS)
  found = comparisons.lines(scored, _SETTINGS)
  return {(line.task, line.method): line for line in found}


def test_a_seed_scores_its_last_values_its_area_and_what_it_had_by_a_step(
  curves,
):
  (_, score), *_ = comparisons.score(curves, _SETTINGS)
  assert score == (3.0, 2.0, (0.0, 2.0))


def test_areas_are_of_the_steps_that_all_of_a_task_have():
  curves = [
    _curve("maze", "pbt", 0, [9, 0, 2], [0, 10, 30]),
    _curve("maze", "pb2", 0, [1, 1], [10, 20]),
  ]
  scored = comparisons.score(curves, _SETTINGS._replace(at_steps=(5,)))
  # From 10 to 20, and halfway to 2 by then.
  assert [score.area for _, score in scored] == [0.5, 1.0]
  assert scored[0][1].at == (9.0,)
  assert np.isnan(scored[1][1].at[0])


def test_a_line_is_of_the_seeds_of_a_method_on_a_task(lines):
  pbt, pb2 = lines["maze", "pbt"], lines["maze", "pb2"]
  assert (pbt.num_seeds, pbt.final.value) == (2, 4.5)
  assert (pbt.final.low, pbt.final.high) == (3.0, 6.0)
  assert pbt.improvement is None
  # 3 against 3 and 6; 4 against 3 and 6.
  assert pb2.improvement.value == pytest.approx(1.5 / 4)
  assert [x.value for x in pb2.at] == [2.0, 2.5]
  assert (pbt.env_steps, pbt.minutes) == (1_500_000, 1.0)


def test_all_tasks_are_pooled_each_on_its_own_scale(lines):
  pbt, pb2 = lines[ALL_TASKS, "pbt"], lines[ALL_TASKS, "pb2"]
  # In the maze finals are from 3 to 6; the ants have 0 and 1.
  assert pbt.final.value == pytest.approx(np.mean([0, 1, 0]))
  assert pb2.final.value == pytest.approx(np.mean([0, 1 / 3, 1]))
  assert pb2.improvement.value == pytest.approx((1.5 / 4 + 1) / 2)
  assert pb2.num_seeds == 3


def test_tasks_that_a_method_has_no_runs_of_are_not_pooled(curves):
  scored = comparisons.score(curves[:-1], _SETTINGS)
  found = comparisons.lines(scored, _SETTINGS)
  assert [(line.task, line.method) for line in found] == [
    ("maze", "pbt"), ("maze", "pb2"), ("ant", "pbt")
  ]  # fmt: skip


def test_without_a_run_of_the_baseline_nothing_is_compared_with_it(curves):
  scored = comparisons.score(curves[2:4], _SETTINGS)
  (line,) = comparisons.lines(scored, _SETTINGS)
  assert line.improvement is None


def test_tables_say_what_the_lines_say(lines):
  text = comparisons.markdown(list(lines.values()), _SETTINGS)
  assert "## all tasks" in text and "## ant" in text
  (row,) = [x for x in text.splitlines() if x.startswith("| pbt | 2 |")]
  assert row.split(" | ")[2:] == [
    "4.5 (3 to 6)", "3 (2 to 4)", "0 (0 to 0)", "3 (2 to 4)", "", "1.5",
    "1.0 |",
  ]  # fmt: skip
  rows = comparisons.json_rows(list(lines.values()), _SETTINGS)
  (row,) = [x for x in rows if (x["task"], x["method"]) == ("maze", "pbt")]
  assert (row["at_20"], row["at_20_low"], row["at_20_high"]) == (3, 2, 4)
  assert "improvement" not in row


def test_a_run_is_read_by_seed(tmp_path):
  common.write_population(tmp_path / "pbt")
  common.write_seeds(tmp_path / "train", 3)
  row = comparisons.Row("maze", "pbt", (4,), "train_pbt", ())
  (curve,) = comparisons.read(row, tmp_path / "pbt", "pbt/best_return")
  assert (curve.seed, curve.values.tolist()) == (4, [3, 6, 7, 9])
  row = comparisons.Row("maze", "alone", (0, 1, 2), "train", ())
  curves = comparisons.read(row, tmp_path / "train", "eval/episode_return")
  assert [curve.values[0] for curve in curves] == [100, 101, 102]
  with pytest.raises(ValueError, match="for each of 3 seeds; .*eval/episode"):
    comparisons.read(row, tmp_path / "train", "pbt/best_return")


def test_the_picture_has_a_panel_per_task_and_two_of_all(curves, lines):
  figure = comparisons.picture(curves, list(lines.values()), _SETTINGS)
  titles = [axes.get_title() for axes in figure.axes]
  assert titles[:4] == [
    "maze", "ant", "final, from 0 to 1 in each task",
    "probability of being\nbetter than pbt",
  ]  # fmt: skip
  maze = figure.axes[0]
  assert [line.get_label() for line in maze.lines] == ["pbt", "pb2"]
  np.testing.assert_array_equal(maze.lines[0].get_ydata(), [0, 3, 6])
  labels = [x.get_text() for x in figure.axes[2].get_yticklabels()]
  assert labels == ["pb2", "pbt"]
  # The same colour everywhere.
  bars = figure.axes[2].patches
  assert bars[1].get_facecolor()[:3] == matplotlib_rgb(maze.lines[0])
  (legend,) = figure.legends
  assert {
    text.get_text(): matplotlib_rgb(line)
    for text, line in zip(
      legend.get_texts(), legend.get_lines(), strict=True
    )
  } == {x.get_label(): matplotlib_rgb(x) for x in maze.lines}


def matplotlib_rgb(line):
  from matplotlib import colors

  return colors.to_rgb(line.get_color())
