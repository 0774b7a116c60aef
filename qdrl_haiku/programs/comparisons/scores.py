"""Scores each seed of a comparison, and each method on each task."""

import os
import statistics as standard
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from qdrl_haiku.programs import reports
from qdrl_haiku.programs.artifacts import statistics
from qdrl_haiku.programs.comparisons.plan import CompareConfig, PlannedRun
from qdrl_haiku.programs.reports import aggregation
from qdrl_haiku.types import Record

ALL_TASKS = "all tasks"
"""The task of rows that concern all of them."""


class Curve(NamedTuple):
  """A metric of one seed over its steps."""

  task: str
  method: str
  seed: int
  steps: np.ndarray  # [T], environment steps per agent, rising.
  values: np.ndarray  # [T].
  total_env_steps: int  # Of all agents, in collecting and in evaluation.
  minutes: np.ndarray  # [T], that it had taken; of seeds side by side a share.


def read_scored_curves(
  run: PlannedRun, path: str | os.PathLike[str], metric: str
) -> list[Curve]:
  """Reads a column of `metrics.jsonl` of each seed of a run.

  Values are NaN where the agent, or all members, had diverged. Of other metrics
  only finite values count: they are means, or measured now and then.

  Args:
    run: what was planned.
    path: the run's directory.
    metric: the column's name.

  Raises:
    ValueError: if the run hasn't that metric for each of its seeds.
  """
  (found,) = reports.read_runs([str(path)])
  columns = aggregation.columns_to_aggregate(found, metric)
  last = found.metrics[-1] if found.metrics else {}
  num_seeds = len(run.seeds)
  tells = run.launcher == "train" or metric.startswith("pbt/")
  rows_of = {
    column: [
      row
      for row in found.metrics
      if column in row
      and (row[column] is not None or (tells and row["generation"]))]
    for column in columns}
  if len(columns) != num_seeds or not all(rows_of.values()):
    known = ", ".join(name for name in last if "/seed_" not in name)
    raise ValueError(
      f"metric={metric!r} isn't what {path} has for each of {num_seeds} seeds;"
      f" of its metrics, {known}, name one that tells seeds apart.")
  curves = []
  for seed, column in zip(run.seeds, columns, strict=True):
    rows = rows_of[column]
    steps, values, seconds = (
      np.array([row[name] for row in rows], np.float64)
      for name in ("step", column, "walltime"))
    curves.append(Curve(
      run.task, run.method, seed, steps, values,
      round(last.get("total_env_steps", 0) / num_seeds),
      seconds / 60 / num_seeds))
  return curves


def fill_diverged(curves: Sequence[Curve]) -> list[Curve]:
  """Replaces NaNs, of diverged agents, by the lowest value of the task."""
  lowest: dict[str, float] = {}
  for curve in curves:
    finite = curve.values[np.isfinite(curve.values)]
    if finite.size:
      before = lowest.get(curve.task, np.inf)
      lowest[curve.task] = min(before, float(finite.min()))
  return [
    curve._replace(values=np.where(
      np.isfinite(curve.values), curve.values, lowest.get(curve.task, 0.0)))
    for curve in curves]


def score_curves(
  curves: Sequence[Curve], config: CompareConfig
) -> list[Record]:
  """Scores each seed.

  Returns:
    By task, a row per curve: `final`, the mean of its last values; `area`, its
    mean over the steps that all curves of the task have; `at_<step>` and
    `at_<number>_minutes`, its latest value by then, NaN where there was none
    yet.
  """
  rows: list[Record] = []
  for task in dict.fromkeys(curve.task for curve in curves):
    own = [curve for curve in curves if curve.task == task]
    first = max(curve.steps[0] for curve in own)
    last = min(curve.steps[-1] for curve in own)
    rows += [
      {
        "task": task, "method": curve.method, "seed": curve.seed,
        "final": float(np.mean(curve.values[-config.num_last :])),
        "area": _mean_between(curve, first, last),
        **dict(zip(config.columns, _latest_values(curve, config), strict=True)),
        "total_env_steps": curve.total_env_steps,
        "minutes": float(curve.minutes[-1])}
      for curve in own]
  return rows


def score_table(
  scored: Sequence[Record], config: CompareConfig
) -> list[Record]:
  """Compares methods by the rows of `score_curves`.

  Returns:
    A row per task and method, of interquartile means over seeds with their
    intervals (`<name>`, `<name>_low`, `<name>_high`), of the probability to be
    better than the baseline (`improvement`), and of medians of steps and
    minutes. Where all methods have runs on several tasks, rows of all tasks
    together come first: their scores are shares of the way from the lowest to
    the highest of any run of the task.
  """
  tasks = [*dict.fromkeys(row["task"] for row in scored)]
  methods = [*dict.fromkeys(row["method"] for row in scored)]
  present = {(row["task"], row["method"]) for row in scored}
  complete = [t for t in tasks if present.issuperset((t, m) for m in methods)]
  rows = []
  if len(complete) > 1:
    scaled = [row for task in complete for row in _scaled(scored, task)]
    rows += [_compared(ALL_TASKS, m, scaled, config) for m in methods]
  for task in tasks:
    own = [row for row in scored if row["task"] == task]
    rows += [
      _compared(task, method, own, config)
      for method in methods
      if (task, method) in present]
  return rows


def _scaled(scored: Sequence[Record], task: str) -> list[Record]:
  """Returns a task's scores, from 0 for the lowest to 1 for the highest."""
  rows = [dict(row) for row in scored if row["task"] == task]
  for name in ("final", "area"):
    values = [row[name] for row in rows]
    low, width = min(values), max(values) - min(values) or 1.0
    for row in rows:
      row[name] = (row[name] - low) / width
  return rows


def _compared(
  task: str, method: str, scored: Sequence[Record], config: CompareConfig
) -> Record:
  """Returns the row of a method, of scores on one or more tasks."""
  tasks = [*dict.fromkeys(row["task"] for row in scored)]

  def values(name: str, method: str) -> list[np.ndarray]:
    own = [row for row in scored if row["method"] == method]
    return [
      np.array([row[name] for row in own if row["task"] == one])
      for one in tasks]

  seeds = [row for row in scored if row["method"] == method]
  names = ["final", "area"]
  if task != ALL_TASKS:
    names += config.columns
  estimates = {
    name: statistics.pooled_interquartile_mean(values(name, method))
    for name in names}
  baseline = values("final", config.baseline)
  if method != config.baseline and all(map(len, baseline)):
    estimates["improvement"] = statistics.probability_of_improvement(
      values("final", method), baseline)
  row: Record = {"task": task, "method": method, "num_seeds": len(seeds)}
  row["metric"] = config.metric
  for name, estimate in estimates.items():
    ends = (name, f"{name}_low", f"{name}_high")
    row |= zip(ends, map(float, estimate), strict=True)
  medians = ("total_env_steps", "minutes")
  return row | {x: standard.median(seed[x] for seed in seeds) for x in medians}


def _mean_between(curve: Curve, first: float, last: float) -> float:
  """Returns the mean of a piecewise linear curve between two steps."""
  if last <= first:
    return float(np.interp(first, curve.steps, curve.values))
  steps = np.unique(np.clip(curve.steps, first, last))
  values = np.interp(steps, curve.steps, curve.values)
  return float(np.trapezoid(values, steps) / (last - first))


def _latest_values(curve: Curve, config: CompareConfig) -> list[float]:
  """Returns the values at the steps and the minutes of the table's columns."""

  def latest(axis: np.ndarray, position: float) -> float:
    index = int(np.searchsorted(axis, position, side="right"))
    return float(curve.values[index - 1]) if index else float("nan")

  return [
    *(latest(curve.steps, step) for step in config.at_steps),
    *(latest(curve.minutes, minutes) for minutes in config.at_minutes)]
