"""Renders a comparison as a document of tables, and as a picture."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib import figure as matplotlib_figure

from qdrl_haiku.programs.artifacts import statistics
from qdrl_haiku.programs.comparisons.plan import CompareConfig
from qdrl_haiku.programs.comparisons.scores import ALL_TASKS, Curve
from qdrl_haiku.programs.drawing import figure, with_matplotlib
from qdrl_haiku.programs.drawing.figure import Axis, Panel, Series, Trace
from qdrl_haiku.programs.reports import curves as reports_curves
from qdrl_haiku.types import Record


def render_comparison_markdown(
  table: Sequence[Record], config: CompareConfig
) -> str:
  """Returns a document of the rows of `score_table`: a table per task."""
  text = [
    f"# {config.metric}\n",
    "Interquartile means over seeds, with 95 % stratified bootstrap intervals. "
    f"`final` is the mean of a run's last {config.num_last} evaluations, "
    "`area` the mean over all steps that the runs of a task have in common, "
    f"`better` the probability that a seed's final value is above one of "
    f"{config.baseline} (Agarwal et al., arXiv 2108.13264). Steps are of all "
    "agents of a run, collection and evaluation together; of seeds side by "
    "side each has its share. Steps and minutes are medians. Where an agent, "
    "or all of a population, had diverged, the lowest value of the task "
    "counts. Where seeds are too few or too equal for resamples to differ, "
    "there is no interval.\n"]
  for task in dict.fromkeys(row["task"] for row in table):
    is_all = task == ALL_TASKS
    columns = () if is_all else config.columns
    head = ["method", "runs" if is_all else "seeds", "final", "area"]
    if not is_all:
      head += [f"at {step:,}" for step in config.at_steps]
      head += [f"after {minutes:g} minutes" for minutes in config.at_minutes]
    head += [f"better than {config.baseline}", "million steps", "minutes"]
    text.append(f"## {task}\n")
    if is_all:
      text.append(
        "In each task the lowest value of any run counts as 0, the highest as "
        "1.\n")
    names = ["final", "area", *columns]
    rows = [head, ["---"] * len(head)]
    rows += [
      [
        row["method"], str(row["num_seeds"]),
        *(_interval(row, name) for name in names),
        _interval(row, "improvement", ".2f") if "improvement" in row else "",
        f"{row['total_env_steps'] / 1e6:.3g}", f"{row['minutes']:.1f}"]
      for row in table
      if row["task"] == task]
    text += [f"| {' | '.join(cells)} |" for cells in rows]
    text.append("")
  return "\n".join(text)


def render_comparison_picture(
  curves: Sequence[Curve], table: Sequence[Record], config: CompareConfig
) -> matplotlib_figure.Figure:
  """Draws curves of each task, and scores of methods, each in one style.

  Where runs have one value each, the intervals of methods stand in place of a
  task's curves.

  Args:
    curves: of each task, method and seed.
    table: that of `scores.score_table`.
    config: names the metric and the baseline.
  """
  tasks = [*dict.fromkeys(curve.task for curve in curves)]
  methods = dict.fromkeys(curve.method for curve in curves)
  number_of = {method: i for i, method in enumerate(methods)}
  label = reports_curves.curve_label(config.metric)
  panels = []
  for task in tasks:
    if all(len(curve.steps) == 1 for curve in curves if curve.task == task):
      rows = [row for row in table if row["task"] == task]
      panels.append(_bars(task, Axis(label), rows, "final", number_of))
      continue
    traces: list[Trace] = []
    for method in methods:
      own = [x for x in curves if (x.task, x.method) == (task, method)]
      if own and (mean := _mean(own)) is not None:
        traces += figure.comparison_curve(mean, number_of[method])
    panels.append(Panel(task, traces, Axis(figure.STEPS), Axis(label)))
  final, x = "final", Axis(label)
  if len(tasks) > 1:
    final = "final, from 0 to 1 in each task"
    x = Axis("0: lowest run of a task, 1: highest")
  better = f"probability of being\nbetter than {config.baseline}"
  overall = tasks[0] if len(tasks) == 1 else ALL_TASKS
  rows = [row for row in table if row["task"] == overall]
  if rows:
    panels.append(_bars(final, x, rows, "final", number_of))
  compared = [row for row in rows if "improvement" in row]
  if compared:
    x = Axis("probability", range=(-0.02, 1.02))
    panel = _bars(better, x, compared, "improvement", number_of)
    ends = [-0.5, len(compared) - 0.5]
    even = Trace(
      [0.5, 0.5], ends, color=figure.GREY, dash="dash", in_legend=False)
    panels.append(panel._replace(traces=[*panel.traces, even]))
  height = max(290, 100 + 18 * len(methods))  # A line of text per method.
  return with_matplotlib.draw_with_matplotlib(figure.Figure(panels, height))


def _interval(row: Record, name: str, form: str = ".4g") -> str:
  if not np.isfinite(row[name]):
    return "-"
  low, high = row[f"{name}_low"], row[f"{name}_high"]
  has_width = not np.isclose(low, high, rtol=1e-9, atol=0)
  ends = f"{low:{form}} to {high:{form}}" if has_width else "no interval"
  return f"{row[name]:{form}} ({ends})"


def _bars(
  title: str, x: Axis, rows: Sequence[Record], name: str,
  number_of: Mapping[str, int],
) -> Panel:
  """Describes the intervals of methods, the first one on top."""
  traces = []
  for i, row in enumerate(reversed(rows)):
    low, high = row[f"{name}_low"], row[f"{name}_high"]
    place = number_of[row["method"]] % len(figure.PALETTE)
    color = f"{figure.PALETTE[place]}80"
    traces += [
      figure.figure_rectangle(low, i - 0.4, high, i + 0.4, color),
      Trace(
        [row[name]] * 2, [i - 0.4, i + 0.4], "", figure.BLACK, in_legend=False)]
  methods = [row["method"] for row in reversed(rows)]
  return Panel(title, traces, x, Axis(names=methods))


def _mean(curves: Sequence[Curve]) -> Series | None:
  """Returns the interquartile mean of seeds, at steps that all of them have."""
  first = max(curve.steps[0] for curve in curves)
  last = min(curve.steps[-1] for curve in curves)
  steps = curves[0].steps
  steps = steps[(steps >= first) & (steps <= last)]
  if not len(steps):
    return None
  values = np.stack([np.interp(steps, x.steps, x.values) for x in curves])
  mean = statistics.interquartile_mean_curve(values)
  return Series(curves[0].method, (), steps, *mean)
