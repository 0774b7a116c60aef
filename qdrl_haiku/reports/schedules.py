"""Figures of what a controller did: hyperparameters, and who replaced whom."""

from typing import Any

from qdrl_haiku.controllers import lineage
from qdrl_haiku.reports import ancestry, figure, groups
from qdrl_haiku.reports.ancestry import Ancestry
from qdrl_haiku.reports.figure import Figure, Panel, Trace
from qdrl_haiku.reports.runs import Row, Run
from qdrl_haiku.training.search_spaces import search_space

_HEIGHT_OF_A_MEMBER = 24
_GREATEST_HEIGHT = 900


def hyperparameters(run: Run) -> Figure | None:
  """Draws the hyperparameters of all members that anything changed."""
  won, kinds = ancestry.winner(run), _kinds(run)
  items = [
    _panel(run, name, kinds.get(name), won)
    for name, values in _values(run).items()
    if len(set(values)) > 1
  ]
  return figure.panels(items, figure.STEPS) if items else None


def constants(run: Run) -> dict[str, Any]:
  """Returns the hyperparameters that nothing changed."""
  return {
    name: values[0]
    for name, values in _values(run).items()
    if len(set(values)) == 1
  }


def tree(run: Run) -> Figure | None:
  """Draws who took over from whom."""
  rows = ancestry.by_member(run)
  if not rows or not run.lineage:
    return None
  replaced = ancestry.replacements(run)
  last = max(row["generation"] for row in run.members)
  # What was decided at the end has had no time to be drawn.
  replaced = {key: row for key, row in replaced.items() if key[0] < last}
  born: list[tuple[int, int] | None] = []
  for (generation, child), row in replaced.items():
    if row["parent"] >= 0 and row["parent"] != child:
      born += [(generation, row["parent"]), (generation + 1, child), None]
  traces = [
    _edges(_lives(sorted(rows), replaced, last), "goes on", figure.PALE, 1.5),
    _edges(born, "takes over from its parent", figure.BLUE, 1.2)
    | {"opacity": 0.6},
    *_events(replaced),
  ]
  won = ancestry.winner(run)
  if won is not None:
    path: list[tuple[int, int] | None] = list(won.ancestors.items())
    if min(won.ancestors) == 1:
      path.insert(0, (0, won.ancestors[1]))
    traces.append(_edges(path, won.title, figure.ORANGE, 4))
  height = min(180 + _HEIGHT_OF_A_MEMBER * len(rows), _GREATEST_HEIGHT)
  found = figure.plot(traces, "generation", "member", height)
  found["layout"]["yaxis"] |= {"showgrid": False, "tickformat": "d"}
  # Between groups.
  found["layout"]["shapes"] = [
    {
      "type": "line", "xref": "paper", "x0": 0, "x1": 1,
      "y0": group.members[0] - 0.5, "y1": group.members[0] - 0.5,
      "line": {"color": "#888888", "dash": "dot", "width": 1},
    }
    for group in groups.groups(run)[1:]
  ]  # fmt: skip
  return found


def _values(run: Run) -> dict[str, list[Any]]:
  """Returns each hyperparameter's values, of all members and generations."""
  first = run.members[0]["hyperparams"] if run.members else {}
  return {
    name: figure.numbers(row["hyperparams"].get(name) for row in run.members)
    for name in first
  }


def _kinds(run: Run) -> dict[str, str]:
  """Returns in which kind of range each hyperparameter was searched."""
  ranges = run.settings.get("ranges")
  if isinstance(ranges, dict):
    return {
      name: str(values.get("kind"))
      for name, values in ranges.items()
      if isinstance(values, dict)
    }
  # A run of an older version: if it doesn't say, it took the defaults.
  hyperparams = run.members[0]["hyperparams"] if run.members else {}
  given = {
    name: run.settings[name]
    for name in hyperparams
    if run.settings.get(name) is not None
  }
  try:
    space = search_space(
      hyperparams, run.settings.get("search_space") or [], given
    )
    named = lineage.named_leaves(space)
    return {name: type(values).__name__ for name, values in named.items()}
  except (AttributeError, TypeError, ValueError):
    return {}


def _choices(run: Run, name: str) -> list[float]:
  """Returns the values that a hyperparameter was chosen from, if it was."""
  ranges = run.settings.get("ranges")
  of_name = ranges.get(name) if isinstance(ranges, dict) else None
  values = of_name.get("values") if isinstance(of_name, dict) else None
  known = values if isinstance(values, list) else []
  return [x for x in known if ancestry.is_number(x)]


def _nearest(value: Any, choices: list[float]) -> int | None:
  """Returns which of the choices a value is, but for rounding."""
  if not ancestry.is_number(value):
    return None
  return min(range(len(choices)), key=lambda i: abs(choices[i] - value))


def _panel(
  run: Run, name: str, kind: str | None, won: Ancestry | None
) -> Panel:
  rows = ancestry.by_member(run)
  from_one = kind == "OneMinusLogUniform"
  choices = _choices(run, name) if kind == "Choice" else []
  everyone = [row for curve in rows.values() for row in [*curve.values(), {}]]

  def draw(rows: list[Row], name_in_legend: str, **look: Any) -> Trace:
    numbers = [row.get("hyperparams", {}).get(name) for row in rows]
    if from_one:
      numbers = [1 - x if ancestry.is_number(x) else None for x in numbers]
    texts = figure.numbers(numbers)
    if choices:
      numbers = [_nearest(x, choices) for x in numbers]
    found = figure.line(
      [row.get("step") for row in rows],
      numbers,
      name_in_legend,
      customdata=[row.get("member") for row in rows],
      text=[_text(x) for x in texts],
      hovertemplate="member %{customdata}<br>step %{x}<br>%{text}"
      "<extra></extra>",
      **look,
    )
    # A row says with what the steps before it were trained.
    found["line"]["shape"] = "vh"
    return found

  traces = [draw(everyone, "members", color=figure.PALE, width=1.2)]
  if won is not None:
    traces.append(draw(won.rows, won.title, color=figure.ORANGE, width=3))
  title = figure.text(name.replace("_", " "))
  return Panel(
    f"1 - {title}" if from_one else title,
    traces,
    is_log=from_one or kind == "LogUniform",
    names=[f"{x:g}" for x in choices],
  )


def _text(value: float | None) -> str:
  return "" if value is None else f"{value:g}"


def _lives(
  members: list[int], replaced: dict[tuple[int, int], Row], last: int
) -> list[tuple[int, int] | None]:
  """Returns lines along which members stay what they are."""
  points: list[tuple[int, int] | None] = []
  for member in members:
    start = 0
    ends = [
      generation for generation, child in sorted(replaced) if child == member
    ]
    for end in [*ends, last]:
      points += [(start, member), (end, member), None]
      start = end + 1
  return points


def _edges(
  points: list[tuple[int, int] | None], name: str, color: str, width: float
) -> Trace:
  """Returns lines through points, broken where there is None."""
  pairs = [point or (None, None) for point in points]
  return figure.line(
    [x for x, _ in pairs], (y for _, y in pairs), name, color, width,
    hoverinfo="skip",
  )  # fmt: skip


def _events(replaced: dict[tuple[int, int], Row]) -> list[Trace]:
  """Marks of how members began that aren't of the first generation."""
  kinds: dict[str, list[Row]] = {}
  looks = {
    "child": ("child", figure.BLUE, "circle"),
    "migrated": ("migrant from another group", figure.PURPLE, "diamond"),
    "sample": ("elite of the repertoire", figure.GREEN, "square"),
    "reinitialise": ("begins anew", figure.BLACK, "x"),
  }
  for row in replaced.values():
    kind = row["operator"]
    kinds.setdefault(kind if kind in looks else "child", []).append(row)
  return [
    {
      "type": "scatter",
      "mode": "markers",
      "x": [row["generation"] + 1 for row in rows],
      "y": [row["child"] for row in rows],
      "name": looks[kind][0],
      "marker": {"color": looks[kind][1], "symbol": looks[kind][2], "size": 5},
      "text": [_what_happened(row) for row in rows],
      "hovertemplate": "%{text}<extra></extra>",
    }
    for kind, rows in kinds.items()
  ]


def _what_happened(row: Row) -> str:
  """Returns what the mark of a new member says."""
  origin = f"of member {row['parent']}"
  if row["parent"] < 0:
    origin = f"from cell {row['cell']}" if "cell" in row else "anew"
  lines = [
    f"member {row['child']} {origin}, after generation {row['generation']}",
    f"operator: {figure.text(row['operator'])}",
  ]
  if ancestry.is_number(row.get("predicted_change")):
    change, deviation = figure.numbers(
      [row["predicted_change"], row.get("predicted_deviation")]
    )
    lines.append(f"predicted change of fitness: {change} ± {deviation}")
  old = row.get("old_hyperparams") or {}
  for name, value in row["new_hyperparams"].items():
    if value != old.get(name):
      before, after = figure.numbers([old.get(name), value])
      lines.append(f"{figure.text(name)}: {before} → {after}")
  return "<br>".join(lines)
