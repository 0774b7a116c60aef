"""Figures of what a controller's model predicted, against what came of it."""

from qdrl_haiku.drawing import figure
from qdrl_haiku.drawing.figure import PALETTE, Axis, Figure, Panel, Trace
from qdrl_haiku.reports import ancestry
from qdrl_haiku.reports.ancestry import is_number
from qdrl_haiku.reports.runs import Row, Run

_LENGTH_SCALE = "controller/length_scale/"


def predictions(run: Run) -> Figure | None:
  """Describes predicted changes of fitness against observed ones."""
  points = _points(run)
  if not points:
    return None
  predicted = [row["predicted_change"] for row, _ in points]
  observed = [change for _, change in points]
  ends = [min(predicted + observed), max(predicted + observed)]
  bars: list[tuple[float | None, float | None]] = []
  for row, y in points:
    middle, width = row["predicted_change"], row["predicted_deviation"]
    bars += [(middle - width, y), (middle + width, y), (None, None)]
  texts = [
    f"member {row['child']} of member {row['parent']}, after generation "
    f"{row['generation']}"
    for row, _ in points
  ]
  x, y_ends = zip(*bars, strict=True)
  traces = [
    Trace(ends, ends, "as predicted", figure.BLACK, 1, hover="skip"),
    Trace(x, y_ends, "predicted deviation", figure.PALE, 1, hover="skip"),
    Trace(
      predicted, observed, "children", width=0, sizes=6, texts=texts,
      hover="%{text}\npredicted %{x}\nobserved %{y}",
    ),
  ]  # fmt: skip
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
  """Describes by which hyperparameters changes of fitness were told apart."""
  rows = [row for row in run.metrics if row.get("controller/num_changes")]
  names = _searched(run)
  if not names or not rows:
    return None
  traces = [
    Trace(
      [row["step"] for row in rows],
      [row.get(_LENGTH_SCALE + name) for row in rows],
      name,
      PALETTE[i % len(PALETTE)],
    )
    for i, name in enumerate(names)
  ]
  y = Axis("length scale [shares of the range]", is_log=True)
  return Figure([Panel("", traces, Axis(figure.STEPS), y)], 360)


def ranking(run: Run) -> list[tuple[str, float]]:
  """Returns the last length scales, that of what mattered most first."""
  scales = {name: run.last.get(_LENGTH_SCALE + name) for name in _searched(run)}
  known = [(name, x) for name, x in scales.items() if is_number(x)]
  return sorted(known, key=lambda pair: pair[1])


def _searched(run: Run) -> list[str]:
  """Returns the hyperparameters that have a length scale."""
  return [
    name.removeprefix(_LENGTH_SCALE)
    for name in run.last
    if name.startswith(_LENGTH_SCALE)
  ]


def _points(run: Run) -> list[tuple[Row, float]]:
  """Returns the children of predicted changes, and the observed changes."""
  rows = ancestry.by_member(run)
  found = []
  for (generation, child), row in ancestry.replacements(run).items():
    after = rows.get(child, {}).get(generation + 1, {})
    fitness = after.get("fitness", after.get("return"))
    names = ("predicted_change", "predicted_deviation", "parent_fitness")
    if all(is_number(x) for x in (fitness, *map(row.get, names))):
      found.append((row, fitness - row["parent_fitness"]))
  return found
