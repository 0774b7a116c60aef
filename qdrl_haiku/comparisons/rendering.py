"""Renders a comparison as a document of tables, and as a picture."""

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from qdrl_haiku.comparisons import statistics
from qdrl_haiku.comparisons.scores import ALL_TASKS, Curve, Row, Settings
from qdrl_haiku.drawing import comparison
from qdrl_haiku.reports import curves as reports_curves


def render_comparison_markdown(table: Sequence[Row], settings: Settings) -> str:
  """Returns a document of tables, one per task.

  Args:
    table: of `scores.score_table`.
    settings: what is compared.
  """
  text = [
    f"# {settings.metric}\n",
    "Interquartile means over seeds, with 95 % stratified bootstrap intervals. "
    f"`final` is the mean of a run's last {settings.num_last} evaluations, "
    "`area` the mean over all steps that the runs of a task have in common, "
    f"`better` the probability that a seed's final value is above one of "
    f"{settings.baseline} (Agarwal et al., arXiv 2108.13264). Steps are of all "
    "agents of a run, collection and evaluation together; steps and minutes "
    "are medians.\n",
  ]
  for task in dict.fromkeys(row["task"] for row in table):
    is_all = task == ALL_TASKS
    at_steps = () if is_all else settings.at_steps
    head = ["method", "runs" if is_all else "seeds", "final", "area"]
    head += [f"at {step:,}" for step in at_steps]
    head += [f"better than {settings.baseline}", "million steps", "minutes"]
    text.append(f"## {task}\n")
    if is_all:
      text.append(
        "In each task the lowest value of any run counts as 0, the highest as "
        "1.\n"
      )
    names = ["final", "area", *(f"at_{step}" for step in at_steps)]
    rows = [head, ["---"] * len(head)]
    rows += [
      [
        row["method"],
        str(row["num_seeds"]),
        *(_interval(row, name) for name in names),
        _interval(row, "improvement", ".2f") if "improvement" in row else "",
        f"{row['total_env_steps'] / 1e6:.3g}",
        f"{row['minutes']:.1f}",
      ]
      for row in table
      if row["task"] == task
    ]
    text += [f"| {' | '.join(cells)} |" for cells in rows]
    text.append("")
  return "\n".join(text)


def render_comparison_picture(
  curves: Sequence[Curve], table: Sequence[Row], settings: Settings
) -> Figure:
  """Draws curves of each task, and the overall scores of methods.

  Args:
    curves: of the runs.
    table: of `scores.score_table`.
    settings: what is compared.
  """
  tasks = [*dict.fromkeys(curve.task for curve in curves)]
  label = reports_curves.curve_label(settings.metric)
  final, unit = "final", label
  if len(tasks) > 1:
    final = "final, from 0 to 1 in each task"
    unit = "0: lowest run of a task, 1: highest"

  def intervals(name: str) -> dict[str, comparison.Interval]:
    overall = tasks[0] if len(tasks) == 1 else ALL_TASKS
    return {
      row["method"]: (row[name], row[f"{name}_low"], row[f"{name}_high"])
      for row in table
      if row["task"] == overall and name in row
    }

  better = f"probability of being\nbetter than {settings.baseline}"
  bars = {
    final: comparison.Bars(unit, intervals("final")),
    better: comparison.Bars("probability", intervals("improvement"), even=0.5),
  }
  return comparison.draw_comparison(
    {task: _bands(curves, task) for task in tasks},
    {title: one for title, one in bars.items() if one.intervals},
    label,
  )


def _interval(row: Row, name: str, form: str = ".4g") -> str:
  """Returns a number and its interval as text."""
  if not np.isfinite(row[name]):
    return "-"
  ends = f"{row[f'{name}_low']:{form}} to {row[f'{name}_high']:{form}}"
  return f"{row[name]:{form}} ({ends})"


def _bands(
  curves: Sequence[Curve], task: str
) -> dict[str, comparison.Band]:
  """Returns each method's interquartile mean, at steps that all seeds have."""
  found = {}
  for method in dict.fromkeys(x.method for x in curves if x.task == task):
    own = [x for x in curves if (x.task, x.method) == (task, method)]
    first = max(curve.steps[0] for curve in own)
    last = min(curve.steps[-1] for curve in own)
    steps = own[0].steps
    steps = steps[(steps >= first) & (steps <= last)]
    if len(steps):
      values = np.stack([np.interp(steps, x.steps, x.values) for x in own])
      curve = statistics.interquartile_mean_curve(values)
      found[method] = comparison.Band(steps, *curve)
  return found
