"""Figures of a population: its hyperparameters, and its family tree."""

from collections.abc import Sequence

from qdrl_haiku import checks
from qdrl_haiku.programs.drawing import figure
from qdrl_haiku.programs.drawing.figure import Axis, Figure, Panel, Trace
from qdrl_haiku.programs.reports import ancestry, controller_figures
from qdrl_haiku.programs.reports.ancestry import Ancestry
from qdrl_haiku.programs.reports.runs import Run
from qdrl_haiku.types import Record

_HEIGHT_OF_A_MEMBER = 24
_GREATEST_HEIGHT = 900
_MOST_NAMES = 30
# How members began that aren't of the first generation.
_MARKS = {
  "child": ("child", figure.BLUE, "circle"),
  "migrated": ("migrant from another group", figure.PURPLE, "diamond"),
  "sample": ("elite of the repertoire", figure.GREEN, "square"),
  "reinitialise": ("begins anew", figure.BLACK, "x")}

Point = tuple[int | None, int | None]
"""A generation and a member; the line breaks at one that is _GAP."""
_GAP: Point = (None, None)


def member_hyperparameters_figure(run: Run) -> tuple[Figure | None, str]:
  """Describes the hyperparameters that changed in a run; names the others."""
  won, panels, same = ancestry.winner_ancestry(run), [], []
  for name in run.members[0]["hyperparams"] if run.members else ():
    found = {
      x if checks.is_finite_number(x) else None
      for x in (row["hyperparams"].get(name) for row in run.members)}
    if len(found) > 1:
      panels.append(_panel(run, name, won))
    elif (value := found.pop()) is not None:
      same.append(f"{name} {value:g}")
  caption = (
    "With what the steps up to each evaluation were trained. Axes are "
    "logarithmic where the search was.")
  if same:
    caption += f" The same all the time: {', '.join(same)}."
  return Figure(panels) if panels else None, caption


def member_tree_figure(run: Run) -> Figure | None:
  """Describes which members took over from which."""
  rows = ancestry.member_ancestry_rows(run)
  if not rows or not run.lineage:
    return None
  last = max(row["generation"] for row in run.members)
  # Children of the last decision have no later generation to be drawn in.
  replaced = {
    key: row
    for key, row in ancestry.ancestry_replacements(run).items()
    if key[0] < last}
  born: list[Point] = []
  for (generation, child), row in replaced.items():
    if row["parent"] >= 0 and row["parent"] != child:
      born += [(generation, row["parent"]), (generation + 1, child), _GAP]
  lives = _lives(sorted(rows), replaced, last)
  traces = [
    _edges(lives, "goes on", figure.PALE, 1.5),
    _edges(born, "takes over from its parent", f"{figure.BLUE}99", 1.2),
    *_marks(replaced)]
  won = ancestry.winner_ancestry(run)
  if won is not None:
    path: list[Point] = list(won.ancestors.items())
    if min(won.ancestors) == 1:
      path.insert(0, (0, won.ancestors[1]))
    traces.append(_edges(path, won.title, figure.ORANGE, 4))
  for group in controller_figures.controller_groups(run)[1:]:
    y = group.members.start - 0.5
    traces.append(Trace(
      [0, last], [y, y], "between groups", figure.GREY, 1, dash="dot",
      in_legend=False, hover="skip"))
  height = min(180 + _HEIGHT_OF_A_MEMBER * len(rows), _GREATEST_HEIGHT)
  names = [str(member) for member in rows] if len(rows) <= _MOST_NAMES else []
  panel = Panel("", traces, Axis("generation"), Axis("member", names=names))
  return Figure([panel], height)


def _panel(run: Run, name: str, won: Ancestry | None) -> Panel:
  """Describes one hyperparameter, on an axis as it was searched."""
  # Runs of older versions wrote down no ranges.
  searched = (run.settings.get("ranges") or {}).get(name, {})
  kind = searched.get("kind")
  choices = searched.get("values", []) if kind == "Choice" else []
  is_one_minus = kind == "OneMinusLogUniform"
  is_log = kind == "LogUniform" or is_one_minus
  y = Axis(is_log=is_log, names=[f"{x:g}" for x in choices])
  ends = {0: 0} | {row["generation"]: row["step"] for row in run.members}

  def height(value: object) -> float | None:
    """Returns where a value is drawn."""
    if not checks.is_finite_number(value):
      return None
    if choices:
      return min(range(len(choices)), key=lambda i: abs(choices[i] - value))
    return 1 - value if is_one_minus else value

  def draw(
    rows: Sequence[Record], label: str, color: str, width: float
  ) -> Trace:
    """Describes the values that members of given rows were trained with."""
    # Each value holds from the evaluation before.
    rows = [
      x
      for row in rows
      for x in (row and row | {"step": ends.get(row["generation"] - 1)}, row)]
    values = [row.get("hyperparams", {}).get(name) for row in rows]
    steps = [row.get("step") for row in rows]
    texts = [
      f"member {row.get('member')}: {x:g}" if checks.is_finite_number(x) else ""
      for row, x in zip(rows, values, strict=True)]
    return Trace(
      steps, [height(x) for x in values], label, color, width, texts=texts,
      hover="%{text}\nstep %{x}")

  lives = ancestry.member_ancestry_rows(run).values()
  everyone = [row for curve in lives for row in [*curve.values(), {}]]
  traces = [draw(everyone, "members", figure.PALE, 1.2)]
  if won is not None:
    traces.append(draw(won.rows, won.title, figure.ORANGE, 3))
  title = "1 - " * is_one_minus + name.replace("_", " ")
  return Panel(title, traces, Axis(figure.STEPS), y)


def _lives(
  members: Sequence[int], replaced: dict[tuple[int, int], Record], last: int
) -> list[Point]:
  """Returns lines along which members stay what they are."""
  points: list[Point] = []
  for member in members:
    start = 0
    for end, child in [*sorted(replaced), (last, member)]:
      if child == member:
        points += [(start, member), (end, member), _GAP]
        start = end + 1
  return points


def _edges(
  points: Sequence[Point], name: str, color: str, width: float
) -> Trace:
  x, y = [x for x, _ in points], [y for _, y in points]
  return Trace(x, y, name, color, width, hover="skip")


def _marks(replaced: dict[tuple[int, int], Record]) -> list[Trace]:
  """Describes where members began, and how."""
  kinds: dict[str, list[Record]] = {}
  for row in replaced.values():
    kind = row["operator"] if row["operator"] in _MARKS else "child"
    kinds.setdefault(kind, []).append(row)
  traces = []
  for kind, rows in kinds.items():
    name, color, symbol = _MARKS[kind]
    x = [row["generation"] + 1 for row in rows]
    y = [row["child"] for row in rows]
    texts = [_what_happened(row) for row in rows]
    traces.append(Trace(
      x, y, name, color, 0, symbol=symbol, sizes=5, texts=texts,
      hover="%{text}"))
  return traces


def _what_happened(row: Record) -> str:
  """Returns the text of the mark of a new member."""
  origin = f"of member {row['parent']}"
  if row["parent"] < 0:
    origin = f"from cell {row['cell']}" if "cell" in row else "anew"
  lines = [
    f"member {row['child']} {origin}, after generation {row['generation']}",
    f"operator: {row['operator']}"]
  change, deviation = map(row.get, ("predicted_change", "predicted_deviation"))
  if checks.is_finite_number(change):
    text = f"{_short(change)} ± {_short(deviation)}"
    lines.append(f"predicted change of fitness: {text}")
  old = row.get("old_hyperparams") or {}
  for name, value in row["new_hyperparams"].items():
    if value != old.get(name):
      lines.append(f"{name}: {_short(old.get(name))} → {_short(value)}")
  return "\n".join(lines)


def _short(value: object) -> str:
  """Returns a number with few digits."""
  return f"{value:.6g}" if checks.is_finite_number(value) else "none"
