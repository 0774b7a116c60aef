"""Tests of how methods are told apart in the picture of a comparison."""

import numpy as np
from matplotlib.colors import to_rgb

from qdrl_haiku.programs.comparisons import plan, rendering, scores


def test_curves_bars_and_legend_show_one_style_and_axes_what_they_count():
  methods = [f"method {i}" for i in range(9)]
  config = plan.CompareConfig(metric="pbt/best_return", baseline=methods[0])
  steps = np.arange(40.0)
  curves = [
    scores.Curve("maze", method, seed, steps, steps + seed, 1000, steps)
    for seed in range(2)
    for method in methods]
  table = scores.score_table(scores.score_curves(curves, config), config)
  drawn = rendering.render_comparison_picture(curves, table, config)
  maze, final, better = drawn.axes
  (legend,) = drawn.legends
  assert [x.get_text() for x in legend.get_texts()] == methods

  def look(line):
    return line.get_color(), line.get_marker(), line.get_linestyle()

  looks = [look(line) for line in maze.lines]
  assert len(set(looks)) == 9
  assert looks == [look(line) for line in legend.get_lines()]
  # Bands, and the first bar on top.
  assert len(maze.patches) == 9
  for axes, shown in ((final, methods), (better, methods[1:])):
    colors = [patch.get_facecolor()[:3] for patch in axes.patches]
    expected = [to_rgb(color) for color, *_ in looks][-len(shown) :]
    assert colors[::-1] == expected
    assert [x.get_text() for x in axes.get_yticklabels()] == shown[::-1]
  # A symbol at about ten points.
  assert len(maze.lines[0].get_markevery()) == 10
  assert maze.get_xlabel() == "environment steps per agent"
  assert maze.get_ylabel() == final.get_xlabel()
  assert final.get_xlabel() == "best return in the population"


def test_an_interval_of_no_width_is_none():
  """Three seeds that are all ahead say nothing of a fourth."""
  config = plan.CompareConfig(metric="pbt/best_return", baseline="pbt")
  steps = np.arange(3.0)
  curves = [
    scores.Curve("maze", method, seed, steps, steps * 0 + value, 1000, steps)
    for method, values in (("pbt", [1, 1, 1]), ("pb2", [2, 2, 5]))
    for seed, value in enumerate(values)]
  table = scores.score_table(scores.score_curves(curves, config), config)
  text = rendering.render_comparison_markdown(table, config)
  assert "| pbt | 3 | 1 (no interval) | 1 (no interval) |  |" in text
  assert "| pb2 | 3 | 3 (2 to 5) | 3 (2 to 5) | 1.00 (no interval) |" in text
  assert "there is no interval" in text


def test_runs_of_one_value_are_intervals_by_task_with_a_line_per_method():
  methods = [f"method {i}" for i in range(17)]
  config = plan.CompareConfig(
    metric="qd/corrected_qd_score", baseline=methods[0])
  one = np.array([100.0])
  curves = [
    scores.Curve(task, method, seed, one, one * i + seed, 1000, one)
    for task in ("maze", "ant")
    for i, method in enumerate(methods)
    for seed in range(2)]
  table = scores.score_table(scores.score_curves(curves, config), config)
  drawn = rendering.render_comparison_picture(curves, table, config)
  assert not drawn.legends
  for axes, title in zip(drawn.axes, ("maze", "ant"), strict=False):
    assert axes.get_title() == title
    assert [x.get_text() for x in axes.get_yticklabels()] == methods[::-1]
    ends = [patch.get_extents().x0 for patch in axes.patches]
    assert len(ends) == 17 and ends == sorted(ends, reverse=True)
    height = axes.get_window_extent().height / len(methods)
    labels = [x.get_window_extent().height for x in axes.get_yticklabels()]
    assert max(labels) <= height
