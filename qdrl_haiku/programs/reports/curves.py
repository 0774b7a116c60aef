"""Figures of what a run measured in each generation."""

from collections.abc import Sequence

from qdrl_haiku import checks
from qdrl_haiku.programs.drawing import figure
from qdrl_haiku.programs.drawing.figure import Axis, Figure, Panel, Trace
from qdrl_haiku.programs.reports import aggregation, ancestry
from qdrl_haiku.programs.reports.runs import Run
from qdrl_haiku.types import Record

_LABELS = {
  "eval/coverage": "coverage [cells]",
  "eval/episode_length": "episode length [steps]",
  "eval/episode_return": "episode return, mean over agents",
  "pbt/best_return": "best return in the population",
  "qd/corrected_coverage": "coverage, evaluated again [% of cells]",
  "qd/corrected_max_fitness": "highest mean return, evaluated again",
  "qd/corrected_qd_score": "QD score, evaluated again",
  "qd/coverage": "coverage [% of cells]",
  "qd/descriptor_spread": "standard deviation of descriptors",
  "qd/fitness_spread": "standard deviation of returns",
  "qd/global_hypervolume": "hypervolume of the front of all",
  "qd/max_fitness": "highest return in the repertoire",
  "qd/moqd_score": "MOQD score [sum of hypervolumes of fronts]",
  "qd/num_elites": "elites [count]",
  "qd/num_outside": "descriptors out of bounds [count]",
  "qd/qd_score": "QD score [sum of returns + offset]",
  "training/env_steps_per_second": "environment steps per second",
  "training/policy_entropy": "policy entropy [nats]"}
# Of skills, after the name of what rewards them.
_SKILL_LABELS = {
  "chance_accuracy": "accuracy of guessing [share]",
  "discriminator_accuracy": "accuracy of telling skills [share]",
  "discriminator_accuracy_whole_episode":
    "accuracy over whole episodes [share]",
  "diversity_return": "diversity return [sum of intrinsic rewards]",
  "mutual_information_lower_bound": "mutual information, lower bound [nats]"}
SKILL_METRICS = ("dads/", "diayn/", "eval/coverage", "metra/", "smerl/")
"""Lists how the names of metrics of skills begin."""
# Differences of two metrics that have curves, and constants of a run.
_WITHOUT_CURVE = (
  "qd/lost_coverage", "qd/lost_max_fitness", "qd/lost_qd_score",
  "qd/reevaluation_env_steps", "training/compile_seconds")


def curve_label(metric: str) -> str:
  """Returns the name of a metric in figures."""
  name = metric.split("/", 1)[-1]
  if metric.startswith(SKILL_METRICS) and name in _SKILL_LABELS:
    return _SKILL_LABELS[name]
  return _LABELS.get(metric, name.replace("_", " ").replace("/", ", "))


def learning_curves(run: Run) -> Figure | None:
  """Describes the returns of all members, or of all seeds."""
  traces = _member_traces(run) if run.members else _seed_traces(run)
  if not any(checks.is_finite_number(y) for trace in traces for y in trace.y):
    return None
  return figure.plot_figure(traces, figure.STEPS, figure.RETURN)


def metric_curves(run: Run, *prefixes: str) -> Figure | None:
  """Describes the metrics with given prefixes that aren't always 0."""
  panels = []
  steps = [row["step"] for row in run.metrics]
  for name in run.last:
    values = [row.get(name) for row in run.metrics]
    is_known = any(checks.is_finite_number(x) and x != 0 for x in values)
    is_shown = name not in _WITHOUT_CURVE and "/seed_" not in name
    if name.startswith(prefixes) and is_shown and is_known:
      trace = Trace(steps, values, curve_label(name), in_legend=False)
      panels.append(Panel(curve_label(name), [trace], Axis(figure.STEPS)))
  return Figure(panels) if panels else None


def _seed_traces(run: Run) -> list[Trace]:
  """Describes each seed, and their mean if there are several."""
  found = aggregation.series_to_aggregate(run, "eval/episode_return")
  if len(found) < 2:
    return [Trace(one.steps, one.values, figure.RETURN) for one in found]
  # Of one colour, so that a legend of each would tell nothing.
  thin = [
    Trace(
      x.steps, x.values, "seeds", figure.PALE, 1.2,
      hover=f"{x.name}\nstep %{{x}}\nreturn %{{y}}")
    for x in found]
  name = f"interquartile mean of {len(found)} seeds, 95 % interval"
  mean = aggregation.aggregate_curves(name, found)
  return thin + figure.comparison_curve(mean, 0)


def _member_traces(run: Run) -> list[Trace]:
  """Describes members, their mean, their best, and the winner's ancestry."""
  # A member that is replaced after one generation has no line.
  traces = [_points(_lines(run), "members", figure.PALE, 1.2, 4)]
  steps = [row["step"] for row in run.metrics]
  for metric, name, color in (
    ("pbt/mean_return", "mean", figure.BLACK),
    ("pbt/best_return", "best of each generation", figure.BLUE),
  ):
    values = [row.get(metric) for row in run.metrics]
    traces.append(Trace(steps, values, name, color))
  won = ancestry.winner_ancestry(run)
  if won is not None:
    traces.append(_points(won.rows, won.title, figure.ORANGE, 3))
  return traces


def _lines(run: Run) -> list[Record]:
  """Returns the lines of members; a child's leaves its parent's."""
  rows = ancestry.member_ancestry_rows(run)
  replaced = ancestry.ancestry_replacements(run)
  points: list[Record] = []
  for member, curve in rows.items():
    for generation, row in curve.items():
      points.append(row)
      change = replaced.get((generation, member))
      if change is not None:
        points.append({})
        parent = rows.get(change["parent"], {}).get(generation)
        if parent is not None and parent is not row:
          points.append(parent)
    points.append({})
  return points


def _points(
  rows: Sequence[Record], name: str, color: str, width: float, size: float = 0
) -> Trace:
  """Describes returns over steps; an empty row breaks the line."""
  x, y = ([row.get(key) for row in rows] for key in ("step", "return"))
  texts = [row.get("member", "") for row in rows]
  hover = "member %{text}\nstep %{x}\nreturn %{y}"
  return Trace(x, y, name, color, width, sizes=size, texts=texts, hover=hover)
