"""Reads the scores of each seed from the rows that a run wrote."""

import os
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from qdrl_haiku import reports
from qdrl_haiku.comparisons.table import Row
from qdrl_haiku.reports import aggregation


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


class Score(NamedTuple):
  """Holds the scores of a curve.

  Attributes:
    final: the mean of its last values.
    area: under it, per step: its mean over the steps that all curves of its
      task have.
    at: the latest values at given steps; NaN where there was none yet.
  """

  final: float
  area: float
  at: tuple[float, ...]


def read(row: Row, path: str | os.PathLike[str], metric: str) -> list[Curve]:
  """Reads the seeds of a run.

  Args:
    row: of the table, which asks for the run.
    path: its directory.
    metric: the name of a column of `metrics.jsonl`.

  Returns:
    A curve per seed.

  Raises:
    ValueError: if it isn't a run, or if it has no such metric for each seed.
  """
  (run,) = reports.read_runs([str(path)])
  found = aggregation.series(run, metric)
  last = run.metrics[-1] if run.metrics else {}
  if len(found) != len(row.seeds):
    known = ", ".join(name for name in last if "/seed_" not in name)
    raise ValueError(
      f"metric={metric!r} isn't what {path} has for each of"
      f" {len(row.seeds)} seeds; of its metrics, {known}, name one that tells"
      " seeds apart."
    )
  share = len(row.seeds)
  return [
    Curve(
      row.task,
      row.method,
      seed,
      np.asarray(one.steps, np.float64),
      np.asarray(one.values, np.float64),
      round(last.get("total_env_steps", 0) / share),
      last.get("walltime", 0.0) / 60 / share,
    )
    for seed, one in zip(row.seeds, found, strict=True)
  ]


def scores(
  curves: Sequence[Curve], num_last: int, at_steps: Sequence[int]
) -> list[Score]:
  """Returns what the curves of one task come to."""
  first = max(curve.steps[0] for curve in curves)
  last = min(curve.steps[-1] for curve in curves)
  return [
    Score(
      float(np.mean(curve.values[-num_last:])),
      _mean_between(curve, first, last),
      tuple(_latest(curve, step) for step in at_steps),
    )
    for curve in curves
  ]


def _mean_between(curve: Curve, first: float, last: float) -> float:
  """Returns the mean of a curve, straight from point to point."""
  if last <= first:
    return float(np.interp(first, curve.steps, curve.values))
  within = (curve.steps > first) & (curve.steps < last)
  steps = np.concatenate([[first], curve.steps[within], [last]])
  values = np.interp(steps, curve.steps, curve.values)
  return float(np.trapezoid(values, steps) / (last - first))


def _latest(curve: Curve, step: int) -> float:
  """Returns the value of the last evaluation that had taken place by then."""
  index = int(np.searchsorted(curve.steps, step, side="right"))
  return float(curve.values[index - 1]) if index else float("nan")
