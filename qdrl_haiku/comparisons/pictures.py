"""The picture of a comparison."""

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from qdrl_haiku.comparisons import results, statistics
from qdrl_haiku.comparisons.results import Line, Settings
from qdrl_haiku.comparisons.scores import Curve
from qdrl_haiku.drawing import comparison
from qdrl_haiku.reports import curves as reports_curves


def picture(
  curves: Sequence[Curve], lines: Sequence[Line], settings: Settings
) -> Figure:
  """Draws curves of each task, and what methods come to in all.

  Args:
    curves: of the runs.
    lines: of `results.lines`.
    settings: what was asked for.

  Returns:
    The figure.
  """
  tasks = list(dict.fromkeys(curve.task for curve in curves))
  overall = tasks[0] if len(tasks) == 1 else results.ALL_TASKS
  of_all = [line for line in lines if line.task == overall]
  label = reports_curves.label(settings.metric)
  final, unit = "final", label
  if overall == results.ALL_TASKS:
    final = "final, from 0 to 1 in each task"
    unit = "0: lowest run of a task, 1: highest"
  bars = {
    final: comparison.Bars(unit, {line.method: line.final for line in of_all}),
    f"probability of being\nbetter than {settings.baseline}": comparison.Bars(
      "probability",
      {
        line.method: line.improvement
        for line in of_all
        if line.improvement is not None
      },
      even=0.5,
    ),
  }
  return comparison.comparison(
    {task: _bands(curves, task) for task in tasks},
    {title: one for title, one in bars.items() if one.intervals},
    label,
  )


def _bands(
  curves: Sequence[Curve], task: str
) -> dict[str, comparison.Band]:
  """Returns each method's interquartile mean, where all seeds have come to."""
  found = {}
  by_method: dict[str, list[Curve]] = {}
  for curve in curves:
    if curve.task == task:
      by_method.setdefault(curve.method, []).append(curve)
  for method, own in by_method.items():
    first = max(curve.steps[0] for curve in own)
    last = min(curve.steps[-1] for curve in own)
    steps = own[0].steps
    steps = steps[(steps >= first) & (steps <= last)]
    if not len(steps):
      continue
    values = np.stack([np.interp(steps, x.steps, x.values) for x in own])
    found[method] = comparison.Band(steps, *statistics.mean_curve(values))
  return found
