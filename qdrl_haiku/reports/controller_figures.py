"""Figures of controllers: what PB2 predicted, and the groups of MF-PBT."""

from typing import NamedTuple

from qdrl_haiku import checks
from qdrl_haiku.drawing import figure
from qdrl_haiku.drawing.figure import PALETTE, Axis, Figure, Panel, Trace
from qdrl_haiku.reports import ancestry
from qdrl_haiku.reports.runs import Row, Run

_LENGTH_SCALE = "controller/length_scale/"


class Group(NamedTuple):
  """Members from `first` to before `end`, which decide every so often."""

  frequency: int
  first: int
  end: int

  @property
  def title(self) -> str:
    """Name of the group."""
    return f"every {self.frequency}, members {self.first} to {self.end - 1}"

  def has(self, member: int) -> bool:
    """Returns whether a member is in the group."""
    return self.first <= member < self.end


def controller_groups(run: Run) -> list[Group]:
  """Returns the groups of a run; none if its controller has none."""
  if run.settings.get("controller") != "mf_pbt" or not run.members:
    return []
  texts = run.settings["frequencies"]
  size = len(ancestry.member_ancestry_rows(run)) // len(texts)
  return [
    Group(int(text), i * size, (i + 1) * size) for i, text in enumerate(texts)
  ]


def controller_returns_figure(run: Run) -> Figure:
  """Describes the best return of each group."""
  traces = []
  for i, group in enumerate(controller_groups(run)):
    best: dict[int, float] = {}
    for row in run.members:
      if group.has(row["member"]) and checks.is_finite_number(row["return"]):
        step, value = row["step"], row["return"]
        best[step] = max(value, best.get(step, value))
    color = PALETTE[i % len(PALETTE)]
    traces.append(Trace([*best], [*best.values()], group.title, color))
  return figure.plot_figure(traces, figure.STEPS, "best return in the group")


def controller_migrations_figure(run: Run) -> list[list[int]]:
  """Counts the migrants to each group (rows) from each group (columns)."""
  found = controller_groups(run)
  moves = [
    (row["child"], row["parent"])
    for row in run.lineage
    if row["operator"] == "migrated"
  ]
  return [
    [sum(to.has(a) and from_.has(b) for a, b in moves) for from_ in found]
    for to in found
  ]


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
  right = sum(x * y > 0 for x, y in zip(predicted, observed, strict=True))
  return figure.plot_figure(
    traces, "predicted change of fitness", "observed change of fitness"
  ), (
    f"Of {len(points)} predicted changes {right} had the predicted sign, and "
    f"{within} were within one deviation, as are two in three of a model that "
    "is right."
  )


def controller_length_scales_figure(run: Run) -> Figure | None:
  """Describes by which hyperparameters changes of fitness were told apart."""
  rows = [row for row in run.metrics if row.get("controller/num_changes")]
  names = [name for name in run.last if name.startswith(_LENGTH_SCALE)]
  if not names or not rows:
    return None
  traces = [
    Trace(
      [row["step"] for row in rows],
      [row.get(name) for row in rows],
      name.removeprefix(_LENGTH_SCALE),
      PALETTE[i % len(PALETTE)],
    )
    for i, name in enumerate(names)
  ]
  y = Axis("length scale [shares of the range]", is_log=True)
  return Figure([Panel("", traces, Axis(figure.STEPS), y)], 360)


def _points(run: Run) -> list[tuple[Row, float]]:
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
