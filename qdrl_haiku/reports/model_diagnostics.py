"""Figures of what a controller believed, against what came of it."""

from typing import Any

from qdrl_haiku.reports import ancestry, figure
from qdrl_haiku.reports.figure import Figure, Trace
from qdrl_haiku.reports.runs import Row, Run

_LENGTH_SCALE = "controller/length_scale/"


def predictions(run: Run) -> Figure | None:
  """Draws predicted changes of fitness against those that were observed."""
  points = _points(run)
  if not points:
    return None
  predicted = [row["predicted_change"] for row, _ in points]
  deviations = [row["predicted_deviation"] for row, _ in points]
  observed = [change for _, change in points]
  ends = [min(predicted + observed), max(predicted + observed)]
  traces: list[Trace] = [
    figure.line(ends, ends, "as predicted", figure.BLACK, 1, hoverinfo="skip"),
    {
      "type": "scatter",
      "mode": "markers",
      "x": figure.numbers(predicted),
      "y": figure.numbers(observed),
      "error_x": {
        "type": "data",
        "array": figure.numbers(deviations),
        "color": figure.PALE,
        "thickness": 1,
      },
      "name": "children, with the predicted deviation",
      "marker": {"color": figure.BLUE, "size": 6},
      "text": [_who(row) for row, _ in points],
      "hovertemplate": "%{text}<br>predicted %{x}<br>observed %{y}"
      "<extra></extra>",
    },
  ]
  return figure.plot(
    traces, "predicted change of fitness", "observed change of fitness"
  )


def accuracy(run: Run) -> str:
  """Returns how well changes were predicted, in a sentence."""
  points = _points(run)
  within = sum(
    abs(change - row["predicted_change"]) <= row["predicted_deviation"]
    for row, change in points
  )
  right = sum(change * row["predicted_change"] > 0 for row, change in points)
  return (
    f"Of {len(points)} predicted changes {right} had the predicted sign, and "
    f"{within} were within one deviation, which is of the change itself and "
    "knows nothing of an evaluation's noise."
  )


def length_scales(run: Run) -> Figure | None:
  """Draws by which hyperparameters changes of fitness were told apart."""
  names = _searched(run)
  rows = _modelled(run)
  if not names or not rows:
    return None
  traces = [
    figure.line(
      [row["step"] for row in rows],
      (row.get(_LENGTH_SCALE + name) for row in rows),
      name,
      figure.PALETTE[i % len(figure.PALETTE)],
    )
    for i, name in enumerate(names)
  ]
  found = figure.panels(
    [figure.Panel("length scale [shares of the range]", traces, is_log=True)],
    figure.STEPS,
    height=360,
  )
  # One panel, as wide as the page.
  found["layout"].pop("grid")
  return found


def ranking(run: Run) -> list[tuple[str, float]]:
  """Returns which hyperparameters mattered in the end, most of all first."""
  rows = _modelled(run)
  if not rows:
    return []
  scales = {name: rows[-1].get(_LENGTH_SCALE + name) for name in _searched(run)}
  known = [(n, x) for n, x in scales.items() if ancestry.is_number(x)]
  return sorted(known, key=lambda pair: pair[1])


def _searched(run: Run) -> list[str]:
  """Returns the hyperparameters that have a length scale."""
  last: Row = run.metrics[-1] if run.metrics else {}
  return [
    name.removeprefix(_LENGTH_SCALE)
    for name in last
    if name.startswith(_LENGTH_SCALE)
  ]


def _modelled(run: Run) -> list[Row]:
  """Returns the rows of metrics from which on changes were known."""
  return [row for row in run.metrics if row.get("controller/num_changes")]


def _points(run: Run) -> list[tuple[Row, float]]:
  """Returns children of whom a change was predicted, and what it was."""
  rows = ancestry.by_member(run)
  found = []
  for (generation, child), row in ancestry.replacements(run).items():
    after: dict[str, Any] = rows.get(child, {}).get(generation + 1, {})
    fitness = after.get("fitness", after.get("return"))
    change = row.get("predicted_change")
    deviation = row.get("predicted_deviation")
    start = row.get("parent_fitness")
    if (
      ancestry.is_number(fitness)
      and ancestry.is_number(start)
      and ancestry.is_number(change)
      and ancestry.is_number(deviation)
    ):
      found.append((row, fitness - start))
  return found


def _who(row: Row) -> str:
  return (
    f"member {row['child']} of member {row['parent']}, after generation"
    f" {row['generation']}"
  )
