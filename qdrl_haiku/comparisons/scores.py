"""Scores each seed of a comparison, and each method on each task."""

import os
import statistics as standard
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from qdrl_haiku import reports
from qdrl_haiku.comparisons import statistics
from qdrl_haiku.comparisons.plan import PlannedRun
from qdrl_haiku.reports import aggregation

ALL_TASKS = "all tasks"
"""The task of rows that concern all of them."""
Row = dict[str, Any]
"""Scores by name, as a line of JSON has them."""


class Settings(NamedTuple):
  """Says which numbers of the runs are compared.

  Attributes:
    metric: by which they are compared.
    baseline: the method that the others are compared with.
    num_last: how many of the last values a final one is the mean of.
    at_steps: at which values are asked for.
  """

  metric: str
  baseline: str
  num_last: int
  at_steps: tuple[int, ...]


class Curve(NamedTuple):
  """A metric of one seed over its steps.

  Attributes:
    task: its name.
    method: its name.
    seed: of the run.
    steps: [T], environment steps per agent, rising.
    values: [T].
    total_env_steps: that all agents took, in collecting and in evaluation.
    minutes: that the run took; of seeds side by side a share.
  """

  task: str
  method: str
  seed: int
  steps: np.ndarray
  values: np.ndarray
  total_env_steps: int
  minutes: float


def read_scored_curves(
  run: PlannedRun, path: str | os.PathLike[str], metric: str
) -> list[Curve]:
  """Reads the seeds of a run.

  Args:
    run: that was planned.
    path: its directory.
    metric: the name of a column of `metrics.jsonl`.

  Returns:
    A curve per seed.

  Raises:
    ValueError: if it isn't a run, or has no such metric for each seed.
  """
  (found,) = reports.read_runs([str(path)])
  series = aggregation.series_to_aggregate(found, metric)
  last = found.metrics[-1] if found.metrics else {}
  num_seeds = len(run.seeds)
  if len(series) != num_seeds:
    known = ", ".join(name for name in last if "/seed_" not in name)
    raise ValueError(
      f"metric={metric!r} isn't what {path} has for each of {num_seeds} seeds;"
      f" of its metrics, {known}, name one that tells seeds apart."
    )
  return [
    Curve(
      run.task,
      run.method,
      seed,
      np.asarray(one.steps, np.float64),
      np.asarray(one.values, np.float64),
      round(last.get("total_env_steps", 0) / num_seeds),
      last.get("walltime", 0.0) / 60 / num_seeds,
    )
    for seed, one in zip(run.seeds, series, strict=True)
  ]


def score_curves(curves: Sequence[Curve], settings: Settings) -> list[Row]:
  """Scores each seed.

  Args:
    curves: of any tasks.
    settings: what is compared.

  Returns:
    By task, a row per curve: `final`, the mean of its last values; `area`, its
    mean over the steps that all curves of the task have; `at_<step>`, its
    latest value at a step, NaN where there was none yet.
  """
  rows: list[Row] = []
  for task in dict.fromkeys(curve.task for curve in curves):
    own = [curve for curve in curves if curve.task == task]
    first = max(curve.steps[0] for curve in own)
    last = min(curve.steps[-1] for curve in own)
    rows += [
      {
        "task": task,
        "method": curve.method,
        "seed": curve.seed,
        "final": float(np.mean(curve.values[-settings.num_last :])),
        "area": _mean_between(curve, first, last),
        **{f"at_{step}": _latest(curve, step) for step in settings.at_steps},
        "total_env_steps": curve.total_env_steps,
        "minutes": curve.minutes,
      }
      for curve in own
    ]
  return rows


def score_table(scored: Sequence[Row], settings: Settings) -> list[Row]:
  """Compares methods.

  Args:
    scored: of `score_curves`.
    settings: what is compared.

  Returns:
    A row per task and method, of interquartile means over seeds with their
    intervals (`<name>`, `<name>_low`, `<name>_high`), of the probability to be
    better than the baseline (`probability_of_improvement`), and of medians of
    steps and minutes. Where all methods have runs on several tasks, rows of
    these together come first: their scores are shares of the way from the
    lowest to the highest of any run of the task.
  """
  tasks = [*dict.fromkeys(row["task"] for row in scored)]
  methods = [*dict.fromkeys(row["method"] for row in scored)]
  present = {(row["task"], row["method"]) for row in scored}
  complete = [t for t in tasks if present.issuperset((t, m) for m in methods)]
  rows = []
  if len(complete) > 1:
    scaled = [row for task in complete for row in _scaled(scored, task)]
    rows += [_compared(ALL_TASKS, m, scaled, settings) for m in methods]
  for task in tasks:
    own = [row for row in scored if row["task"] == task]
    rows += [
      _compared(task, method, own, settings)
      for method in methods
      if (task, method) in present
    ]
  return rows


def _scaled(scored: Sequence[Row], task: str) -> list[Row]:
  """Returns a task's scores, from 0 for the lowest to 1 for the highest."""
  rows = [dict(row) for row in scored if row["task"] == task]
  for name in ("final", "area"):
    values = [row[name] for row in rows]
    low, width = min(values), max(values) - min(values) or 1.0
    for row in rows:
      row[name] = (row[name] - low) / width
  return rows


def _compared(
  task: str, method: str, scored: Sequence[Row], settings: Settings
) -> Row:
  """Returns the row of a method, of scores on one or more tasks."""
  tasks = [*dict.fromkeys(row["task"] for row in scored)]

  def values(name: str, method: str) -> list[np.ndarray]:
    own = [row for row in scored if row["method"] == method]
    return [
      np.array([row[name] for row in own if row["task"] == one])
      for one in tasks
    ]

  seeds = [row for row in scored if row["method"] == method]
  names = ["final", "area"]
  if task != ALL_TASKS:
    names += [f"at_{step}" for step in settings.at_steps]
  estimates = {
    name: statistics.pooled_interquartile_mean(values(name, method))
    for name in names
  }
  baseline = values("final", settings.baseline)
  if method != settings.baseline and all(map(len, baseline)):
    estimates["improvement"] = statistics.probability_of_improvement(
      values("final", method), baseline
    )
  row: Row = {"task": task, "method": method, "num_seeds": len(seeds)}
  row["metric"] = settings.metric
  for name, estimate in estimates.items():
    ends = (name, f"{name}_low", f"{name}_high")
    row |= zip(ends, map(float, estimate), strict=True)
  medians = ("total_env_steps", "minutes")
  return row | {x: standard.median(seed[x] for seed in seeds) for x in medians}


def _mean_between(curve: Curve, first: float, last: float) -> float:
  """Returns the mean of a curve, straight from point to point."""
  if last <= first:
    return float(np.interp(first, curve.steps, curve.values))
  steps = np.unique(np.clip(curve.steps, first, last))
  values = np.interp(steps, curve.steps, curve.values)
  return float(np.trapezoid(values, steps) / (last - first))


def _latest(curve: Curve, step: int) -> float:
  """Returns the value of the last evaluation that had taken place by then."""
  index = int(np.searchsorted(curve.steps, step, side="right"))
  return float(curve.values[index - 1]) if index else float("nan")
