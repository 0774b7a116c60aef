"""Runs that differ in their seeds alone, as one."""

import json
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from qdrl_haiku import checks
from qdrl_haiku.programs.artifacts import statistics
from qdrl_haiku.programs.drawing.figure import Series
from qdrl_haiku.programs.reports.runs import Run

DERIVED = ("in_effect", "ranges")
"""Parts of `config.json` beside settings, from which most of them follow."""
ABSENT = "-"
"""Text that is shown where a value is missing."""

_LONGEST_LABEL = 60


class Group(NamedTuple):
  """Runs that are seeds of one another, and how they differ from others."""

  label: str
  runs: list[Run]

  def series(self, metric: str) -> list[Series]:
    """Returns a metric of each seed."""
    return sum((series_to_aggregate(run, metric) for run in self.runs), [])

  def num_seeds(self, metric: str) -> int:
    """Returns how many seeds wrote a metric, finite or not."""
    return sum(
      column in run.last
      for run in self.runs
      for column in columns_to_aggregate(run, metric))


def aggregate_runs(runs: Sequence[Run]) -> list[Group]:
  """Puts runs together that differ in their seeds alone."""
  by_identity: dict[str, list[Run]] = {}
  for run in runs:
    key = json.dumps(run.identity, sort_keys=True)
    by_identity.setdefault(key, []).append(run)
  found = list(by_identity.values())
  different = aggregation_differences([first for first, *_ in found])
  labels = [
    ", ".join(f"{name}={values[i]}" for name, values in different.items())
    for i in range(len(found))]
  if any(not 0 < len(label) <= _LONGEST_LABEL for label in labels):
    labels = [
      first.name + f" and {len(others)} more" * bool(others)
      for first, *others in found]
  return [Group(*pair) for pair in zip(labels, found, strict=True)]


def aggregation_differences(runs: Sequence[Run]) -> dict[str, list[str]]:
  """Returns the settings in which runs differ, seeds and places aside."""
  found = {
    name: [setting_text(run.settings.get(name, ABSENT)) for run in runs]
    for name in sorted({name for run in runs for name in run.identity})
    if name not in DERIVED}
  return {name: values for name, values in found.items() if len({*values}) > 1}


def setting_text(value: object) -> str:
  """Returns a setting's value as users type it."""
  if isinstance(value, list):
    return ",".join(map(setting_text, value)) or "none"
  if value is None:
    return "none"
  return str(value).lower() if isinstance(value, bool) else str(value)


def columns_to_aggregate(run: Run, metric: str) -> list[str]:
  """Returns the columns of a metric: that of each seed trained side by side."""
  names = [name for name in run.last if name.startswith(f"{metric}/seed_")]
  return names or [metric]


def series_to_aggregate(run: Run, metric: str) -> list[Series]:
  """Reads a metric of a run, or of each seed that it trained side by side."""
  found = []
  for name in columns_to_aggregate(run, metric):
    points = [
      (row["generation"], row["step"], row[name])
      for row in run.metrics
      if checks.is_finite_number(row.get(name))]
    if points:
      generations, steps, values = map(list, zip(*points, strict=True))
      is_alone = name == metric
      seed = run.settings.get("seed") if is_alone else name.rpartition("_")[2]
      found.append(
        Series(f"seed {seed}", generations, steps, values, values, values))
  return found


def aggregate_curves(name: str, curves: Sequence[Series]) -> Series:
  """Returns interquartile means of seeds, at the generations that all have."""
  if len(curves) == 1:
    return curves[0]._replace(name=name)
  points = [
    {i: (x, y) for i, x, y in zip(*curve[1:4], strict=True)} for curve in curves
  ]
  generations = sorted(set.intersection(*({*p} for p in points)))
  if not generations:
    return Series(name, [], [], [], [], [])
  # [(step, value), seeds, generations]
  table = np.array([[p[i] for p in points] for i in generations], float).T
  # Seeds differ where steps of evaluations count, whose episodes may end early.
  steps = [round(x) for x in table[0].mean(axis=0)]
  mean = statistics.interquartile_mean_curve(table[1])
  return Series(name, generations, steps, *(x.tolist() for x in mean))
