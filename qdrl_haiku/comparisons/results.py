"""Makes the table of a comparison: numbers with intervals."""

import statistics as standard
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from qdrl_haiku.comparisons import scores as scores_lib
from qdrl_haiku.comparisons import statistics
from qdrl_haiku.comparisons.scores import Curve, Score
from qdrl_haiku.comparisons.statistics import Estimate

ALL_TASKS = "all tasks"
"""Name of the lines that are of all tasks."""


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


class Line(NamedTuple):
  """A method on a task, or on all of them.

  Attributes:
    task: its name, or `ALL_TASKS`; then scores are shares of the way from the
      lowest to the highest that any run has in its task.
    method: its name.
    num_seeds: of the task; or runs, of all tasks.
    final: interquartile mean.
    area: likewise.
    at: likewise, at each of the steps that are asked for; where a seed has no
      value yet, NaN.
    improvement: the probability that the method's final score is higher than
      the baseline's; None for that itself, and where it has no runs.
    env_steps: of all agents in a run, the median over runs.
    minutes: that a run took, likewise.
  """

  task: str
  method: str
  num_seeds: int
  final: Estimate
  area: Estimate
  at: tuple[Estimate, ...]
  improvement: Estimate | None
  env_steps: float
  minutes: float


def score(
  curves: Sequence[Curve], settings: Settings
) -> list[tuple[Curve, Score]]:
  """Returns what each curve comes to.

  Args:
    curves: of any tasks.
    settings: what is asked for.

  Returns:
    Curves and scores, by task.
  """
  found: list[tuple[Curve, Score]] = []
  for task in _distinct(curve.task for curve in curves):
    own = [curve for curve in curves if curve.task == task]
    scores = scores_lib.scores(own, settings.num_last, settings.at_steps)
    found += zip(own, scores, strict=True)
  return found


def lines(
  scored: Sequence[tuple[Curve, Score]], settings: Settings
) -> list[Line]:
  """Compares methods.

  Args:
    scored: of `score`.
    settings: what is asked for.

  Returns:
    Where there are several tasks on which all methods have runs, a line per
    method for these together; then a line per task and method.
  """
  tasks = _distinct(curve.task for curve, _ in scored)
  methods = _distinct(curve.method for curve, _ in scored)
  of = {
    (task, method): [
      (curve, score_)
      for curve, score_ in scored
      if (curve.task, curve.method) == (task, method)
    ]
    for task in tasks
    for method in methods
  }
  found = []
  complete = [t for t in tasks if all(of[t, method] for method in methods)]
  if len(complete) > 1:
    relative = _relative(of, complete, methods)
    found += [
      _line(ALL_TASKS, method, relative, settings, complete)
      for method in methods
    ]
  by_method = {
    task: {method: [of[task, method]] for method in methods} for task in tasks
  }
  found += [
    _line(task, method, by_method[task], settings, [task])
    for task in tasks
    for method in methods
    if of[task, method]
  ]
  return found


def _relative(of: Any, tasks: list[str], methods: list[str]) -> Any:
  """Returns by method and task the scores, from 0 to 1 in each task."""
  found: dict[str, list[Any]] = {method: [] for method in methods}
  for task in tasks:
    everything = [score_ for m in methods for _, score_ in of[task, m]]
    scale_final = _to_unit([x.final for x in everything])
    scale_area = _to_unit([x.area for x in everything])
    for method in methods:
      found[method].append(
        [
          (curve, Score(scale_final(x.final), scale_area(x.area), ()))
          for curve, x in of[task, method]
        ]
      )
  return found


def _to_unit(values: Sequence[float]) -> Callable[[float], float]:
  low, high = min(values), max(values)
  width = high - low or 1.0
  return lambda value: (value - low) / width


def _line(
  task: str, method: str, by_method: Any, settings: Settings, tasks: list[str]
) -> Line:
  own = by_method[method]
  others = by_method.get(settings.baseline, [[] for _ in tasks])

  def values(strata: Any, get: Callable[[Score], float]) -> list[np.ndarray]:
    return [np.array([get(x) for _, x in runs]) for runs in strata]

  def mean(get: Callable[[Score], float]) -> Estimate:
    return statistics.pooled_mean(values(own, get))

  improvement = None
  if method != settings.baseline and all(others):
    improvement = statistics.improvement(
      values(own, lambda x: x.final), values(others, lambda x: x.final)
    )
  curves = [curve for runs in own for curve, _ in runs]
  num_at = len(settings.at_steps) if task != ALL_TASKS else 0
  return Line(
    task=task,
    method=method,
    num_seeds=len(curves),
    final=mean(lambda x: x.final),
    area=mean(lambda x: x.area),
    at=tuple(
      mean(lambda x: x.at[i])  # noqa: B023  # It's called at once.
      for i in range(num_at)
    ),
    improvement=improvement,
    env_steps=standard.median(curve.total_env_steps for curve in curves),
    minutes=standard.median(curve.minutes for curve in curves),
  )


def json_rows(lines: Sequence[Line], settings: Settings) -> list[dict]:
  """Returns lines as rows of JSON.

  Args:
    lines: of `lines`.
    settings: what was asked for.

  Returns:
    A flat row per line, with the columns `<name>`, `<name>_low` and
    `<name>_high` for each number that has an interval.
  """
  rows = []
  for line in lines:
    row: dict[str, Any] = {
      "task": line.task,
      "method": line.method,
      "num_seeds": line.num_seeds,
      "metric": settings.metric,
    }
    at = zip(settings.at_steps, line.at, strict=False)
    estimates = {"final": line.final, "area": line.area}
    estimates |= {f"at_{step}": estimate for step, estimate in at}
    if line.improvement is not None:
      estimates["improvement"] = line.improvement
    for name, estimate in estimates.items():
      row |= {
        name: estimate.value,
        f"{name}_low": estimate.low,
        f"{name}_high": estimate.high,
      }
    row |= {"total_env_steps": line.env_steps, "minutes": line.minutes}
    rows.append(row)
  return rows


def markdown(lines: Sequence[Line], settings: Settings) -> str:
  """Returns a document of tables, one per task.

  Args:
    lines: of `lines`.
    settings: what was asked for.

  Returns:
    Markdown.
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
  for task in _distinct(line.task for line in lines):
    own = [line for line in lines if line.task == task]
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
    text.append(_row(head))
    text.append(_row(["---"] * len(head)))
    text += [_row(_cells(line)) for line in own]
    text.append("")
  return "\n".join(text)


def _cells(line: Line) -> list[str]:
  better = line.improvement
  return [
    line.method,
    str(line.num_seeds),
    *map(_estimate, (line.final, line.area, *line.at)),
    "" if better is None else _estimate(better, ".2f"),
    f"{line.env_steps / 1e6:.3g}",
    f"{line.minutes:.1f}",
  ]


def _estimate(estimate: Estimate, form: str = ".4g") -> str:
  if not np.isfinite(estimate.value):
    return "-"
  value, low, high = (f"{x:{form}}" for x in estimate)
  return f"{value} ({low} to {high})"


def _row(cells: Sequence[str]) -> str:
  return f"| {' | '.join(cells)} |"


def _distinct(names: Any) -> list[str]:
  return list(dict.fromkeys(names))
