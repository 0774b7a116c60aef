"""Figures of what a run measured in each generation."""

from collections.abc import Sequence

from qdrl_haiku.reports import ancestry, figure
from qdrl_haiku.reports.aggregation import Series, aggregated, series
from qdrl_haiku.reports.figure import Figure, Panel, Trace
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
# What was lost is the distance of two others.
_WITHOUT_CURVE = (
  "qd/lost_coverage", "qd/lost_max_fitness", "qd/lost_qd_score",
  "qd/reevaluation_env_steps", "training/compile_seconds",
)  # fmt: skip


def label(metric: str) -> str:
  """Returns what a metric is called in figures."""
  name = metric.split("/", 1)[-1].replace("_", " ").replace("/", ", ")
  return _LABELS.get(metric, figure.text(name))


def learning_curves(run: Run) -> Figure | None:
  """Draws the returns: of all members, or of all seeds."""
  traces = _of_members(run) if run.members else _of_seeds(run)
  if not any(y is not None for trace in traces for y in trace["y"]):
    return None
  return figure.plot(traces, figure.STEPS, figure.RETURN)


def metric_panels(run: Run, prefix: str) -> Figure | None:
  """Draws all metrics whose names begin alike."""
  names = [
    name
    for name in (run.metrics[-1] if run.metrics else {})
    if name.startswith(prefix)
    and "/seed_" not in name
    and name not in _WITHOUT_CURVE
  ]
  steps = [row["step"] for row in run.metrics]
  items = []
  for name in names:
    values = figure.numbers(row.get(name) for row in run.metrics)
    if any(value is not None for value in values):
      trace = figure.line(steps, values, name, figure.BLUE, showlegend=False)
      if _has_lone_points(values):
        trace |= {
          "mode": "lines+markers",
          "marker": {"color": figure.BLUE, "size": 6},
        }
      items.append(Panel(label(name), [trace]))
  return figure.panels(items, figure.STEPS) if items else None


def band(curve: Series, color: str) -> list[Trace]:
  """Returns an interquartile mean with its interval."""
  traces = []
  if curve.low is not None and curve.high is not None:
    traces.append(
      figure.line(
        [*curve.steps, *reversed(curve.steps)],
        [*curve.high, *reversed(curve.low)],
        curve.name,
        color,
        0,
        fill="toself",
        # A fourth of full colour.
        fillcolor=f"{color}40",
        hoverinfo="skip",
        legendgroup=curve.name,
        showlegend=False,
      )
    )
  traces.append(
    figure.line(
      curve.steps, curve.values, curve.name, color, 2.5,
      legendgroup=curve.name,
    )  # fmt: skip
  )
  return traces


def _has_lone_points(values: Sequence[float | None]) -> bool:
  """Tells whether a line would leave out a value between two that lack."""
  known = [False, *(value is not None for value in values), False]
  return any(
    known[i] and not (known[i - 1] or known[i + 1])
    for i in range(1, len(known) - 1)
  )


def _of_seeds(run: Run) -> list[Trace]:
  """Draws each seed, and what they have in common if there are several."""
  found = series(run, "eval/episode_return")
  if len(found) < 2:
    return [
      figure.line(one.steps, one.values, figure.RETURN, figure.BLUE)
      for one in found
    ]
  thin = [
    figure.line(one.steps, one.values, one.name, figure.PALE, 1.2)
    for one in found
  ]
  name = f"interquartile mean of {len(found)} seeds, 95 % interval"
  return thin + band(aggregated(name, found), figure.BLUE)


def _of_members(run: Run) -> list[Trace]:
  """Returns all members, their mean, their best, and the winner's ancestry."""
  traces = [_member_lines(run)]
  for metric, name, color in (
    ("pbt/mean_return", "mean", figure.BLACK),
    ("pbt/best_return", "best of each generation", figure.BLUE),
  ):
    traces.append(
      figure.line(
        [row["step"] for row in run.metrics],
        (row.get(metric) for row in run.metrics),
        name,
        color,
      )
    )
  won = ancestry.winner(run)
  if won is not None:
    traces.append(_points(won.rows, won.title, figure.ORANGE, 3))
  return traces


def _member_lines(run: Run) -> Trace:
  """Draws all members, of whom a child's line leaves its parent's."""
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
  return _points(points, "members", figure.PALE, 1.2) | {
    # Who is replaced at once has no line.
    "mode": "lines+markers",
    "marker": {"color": figure.PALE, "size": 4},
  }


def _points(rows: Sequence[Row], name: str, color: str, width: float) -> Trace:
  """Returns over steps; a row without anything breaks the line."""
  return figure.line(
    [row.get("step") for row in rows],
    (row.get("return") for row in rows),
    name,
    color,
    width,
    customdata=[row.get("member") for row in rows],
    hovertemplate="member %{customdata}<br>step %{x}<br>return %{y}"
    "<extra></extra>",
  )
