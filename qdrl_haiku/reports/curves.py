"""Figures of what a run measured in each generation."""

from collections.abc import Sequence

from qdrl_haiku.drawing import comparison, figure
from qdrl_haiku.drawing.figure import Axis, Figure, Panel, Trace
from qdrl_haiku.reports import ancestry
from qdrl_haiku.reports.aggregation import aggregated, series
from qdrl_haiku.reports.runs import Row, Run

_LABELS = {
  "diayn/chance_accuracy": "accuracy of guessing [share]",
  "diayn/discriminator_accuracy": "discriminator accuracy [share]",
  "diayn/discriminator_accuracy_whole_episode":
    "accuracy over whole episodes [share]",
  "diayn/diversity_return": "diversity return [nats per episode]",
  "diayn/mutual_information_lower_bound":
    "mutual information, lower bound [nats]",
  "diayn/state_coverage": "state coverage [cells of 100]",
  "eval/episode_length": "episode length [steps]",
  "eval/episode_return": "episode return, mean over agents",
  "pbt/best_return": "best return in the population",
  "qd/corrected_coverage": "coverage, evaluated again [% of cells]",
  "qd/corrected_max_fitness": "highest mean return, evaluated again",
  "qd/corrected_qd_score": "QD score, evaluated again",
  "qd/coverage": "coverage [% of cells]",
  "qd/descriptor_spread": "standard deviation of descriptors",
  "qd/fitness_spread": "standard deviation of returns",
  "qd/max_fitness": "highest return in the repertoire",
  "qd/num_elites": "elites [count]",
  "qd/num_outside": "descriptors out of bounds [count]",
  "qd/qd_score": "QD score [sum of returns + offset]",
  "training/env_steps_per_second": "environment steps per second",
  "training/policy_entropy": "policy entropy [nats]",
  "training/updates_per_second": "updates per second",
}
# The distances of two others, and what is a number of each run.
_WITHOUT_CURVE = (
  "qd/lost_coverage", "qd/lost_max_fitness", "qd/lost_qd_score",
  "qd/reevaluation_env_steps", "training/compile_seconds",
)  # fmt: skip


def label(metric: str) -> str:
  """Returns the name of a metric in figures."""
  name = metric.split("/", 1)[-1].replace("_", " ").replace("/", ", ")
  return _LABELS.get(metric, name)


def learning_curves(run: Run) -> Figure | None:
  """Describes the returns of all members, or of all seeds."""
  traces = _of_members(run) if run.members else _of_seeds(run)
  if not any(ancestry.is_number(y) for trace in traces for y in trace.y):
    return None
  return figure.plot(traces, figure.STEPS, figure.RETURN)


def metric_panels(run: Run, prefix: str) -> Figure | None:
  """Describes all metrics whose names begin alike."""
  panels = []
  steps = [row["step"] for row in run.metrics]
  for name in run.last:
    values = [row.get(name) for row in run.metrics]
    is_shown = name not in _WITHOUT_CURVE and "/seed_" not in name
    is_known = any(map(ancestry.is_number, values))
    if name.startswith(prefix) and is_shown and is_known:
      size = 6 * _has_lone_points(values)
      trace = Trace(steps, values, label(name), in_legend=False, sizes=size)
      panels.append(Panel(label(name), [trace], Axis(figure.STEPS)))
  return Figure(panels) if panels else None


def _has_lone_points(values: Sequence[object]) -> bool:
  """Returns whether a value stands between two that lack, without a line."""
  known = [False, *map(ancestry.is_number, values), False]
  return any(
    known[i] and not (known[i - 1] or known[i + 1])
    for i in range(1, len(known) - 1)
  )


def _of_seeds(run: Run) -> list[Trace]:
  """Describes each seed, and their mean if there are several."""
  found = series(run, "eval/episode_return")
  if len(found) < 2:
    return [Trace(one.steps, one.values, figure.RETURN) for one in found]
  thin = [
    Trace(one.steps, one.values, one.name, figure.PALE, 1.2) for one in found
  ]
  name = f"interquartile mean of {len(found)} seeds, 95 % interval"
  (style,) = comparison.styles([name]).values()
  mean = comparison.Band(*aggregated(name, found)[2:])
  return thin + comparison.curve(name, mean, style)


def _of_members(run: Run) -> list[Trace]:
  """Describes members, their mean, their best, and the winner's ancestry."""
  steps = [row["step"] for row in run.metrics]
  traces = [_member_lines(run)]
  for metric, name, color in (
    ("pbt/mean_return", "mean", figure.BLACK),
    ("pbt/best_return", "best of each generation", figure.BLUE),
  ):
    values = [row.get(metric) for row in run.metrics]
    traces.append(Trace(steps, values, name, color))
  won = ancestry.winner(run)
  if won is not None:
    traces.append(_points(won.rows, won.title, figure.ORANGE, 3))
  return traces


def _member_lines(run: Run) -> Trace:
  """Describes all members; a child's line leaves its parent's."""
  rows, replaced = ancestry.by_member(run), ancestry.replacements(run)
  points: list[Row] = []
  for curve in rows.values():
    for generation, row in curve.items():
      points.append(row)
      change = replaced.get((generation, row["member"]))
      if change is not None:
        points.append({})
        parent = rows.get(change["parent"], {}).get(generation)
        if parent is not None and parent is not row:
          points.append(parent)
    points.append({})
  # A member that is replaced after one generation has no line.
  return _points(points, "members", figure.PALE, 1.2, 4)


def _points(
  rows: Sequence[Row], name: str, color: str, width: float, size: float = 0
) -> Trace:
  """Describes returns over steps; an empty row breaks the line."""
  return Trace(
    [row.get("step") for row in rows],
    [row.get("return") for row in rows],
    name,
    color,
    width,
    sizes=size,
    texts=[row.get("member", "") for row in rows],
    hover="member %{text}\nstep %{x}\nreturn %{y}",
  )
