"""Figures of controllers: what PB2 predicted, and the groups of MF-PBT."""

from typing import NamedTuple

from qdrl_haiku import checks
from qdrl_haiku.programs.drawing import figure
from qdrl_haiku.programs.drawing.figure import PALETTE, Figure, Trace
from qdrl_haiku.programs.reports import ancestry
from qdrl_haiku.programs.reports.runs import Run
from qdrl_haiku.types import Record


class Group(NamedTuple):
  """Members who decide every so often, and the group's name."""

  frequency: int
  members: range
  title: str


def controller_groups(run: Run) -> list[Group]:
  """Returns the groups of a run; none if its controller has none."""
  if run.settings.get("controller") != "mf_pbt" or not run.members:
    return []
  groups, texts = [], run.settings["frequencies"]
  size = len(ancestry.member_ancestry_rows(run)) // len(texts)
  for i, text in enumerate(texts):
    who = range(i * size, (i + 1) * size)
    title = f"every {text}, members {who.start} to {who.stop - 1}"
    groups.append(Group(int(text), who, title))
  return groups


def controller_returns_figure(run: Run) -> Figure:
  """Describes the best return of each group."""
  traces = []
  for i, group in enumerate(controller_groups(run)):
    best: dict[int, float] = {}
    for row in run.members:
      step, value = row["step"], row["return"]
      if row["member"] in group.members and checks.is_finite_number(value):
        best[step] = max(value, best.get(step, value))
    color = PALETTE[i % len(PALETTE)]
    traces.append(Trace([*best], [*best.values()], group.title, color))
  return figure.plot_figure(traces, figure.STEPS, "best return in the group")


def controller_predictions_figure(run: Run) -> tuple[Figure | None, str]:
  """Describes predicted changes of fitness, and says how good they were."""
  points = _points(run)
  if not points:
    return None, ""
  predicted = [row["predicted_change"] for row, _ in points]
  observed = [change for _, change in points]
  ends = [min(predicted + observed), max(predicted + observed)]
  bars: list[tuple[float | None, float | None]] = []
  within = 0
  for row, y in points:
    middle, width = row["predicted_change"], row["predicted_deviation"]
    bars += [(middle - width, y), (middle + width, y), (None, None)]
    within += abs(y - middle) <= width
  texts = [
    f"member {row['child']} of member {row['parent']}, after generation "
    f"{row['generation']}"
    for row, _ in points]
  x, y_ends = zip(*bars, strict=True)
  traces = [
    Trace(ends, ends, "as predicted", figure.BLACK, 1, hover="skip"),
    Trace(x, y_ends, "predicted deviation", figure.PALE, 1, hover="skip"),
    Trace(
      predicted, observed, "children", width=0, sizes=6, texts=texts,
      hover="%{text}\npredicted %{x}\nobserved %{y}")]
  right = sum(x * y > 0 for x, y in zip(predicted, observed, strict=True))
  return figure.plot_figure(
    traces, "predicted change of fitness", "observed change of fitness"), (
    f"Of {len(points)} predicted changes {right} had the predicted sign, and "
    f"{within} were within one deviation, as are two in three of a model that "
    "is right.")


def _points(run: Run) -> list[tuple[Record, float]]:
  """Returns the children of predicted changes, and the observed changes."""
  rows = ancestry.member_ancestry_rows(run)
  found = []
  for (generation, child), row in ancestry.ancestry_replacements(run).items():
    after = rows.get(child, {}).get(generation + 1, {})
    fitness = after.get("fitness", after.get("return"))
    names = ("predicted_change", "predicted_deviation", "parent_fitness")
    if all(checks.is_finite_number(x) for x in (fitness, *map(row.get, names))):
      found.append((row, fitness - row["parent_fitness"]))
  return found
