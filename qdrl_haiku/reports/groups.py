"""The groups of MF-PBT, which evolve at different frequencies."""

from typing import NamedTuple

from qdrl_haiku.drawing import figure
from qdrl_haiku.drawing.figure import PALETTE, Figure, Trace
from qdrl_haiku.reports import ancestry
from qdrl_haiku.reports.runs import Run


class Group(NamedTuple):
  """A sub-population.

  Attributes:
    frequency: the decisions from one of its rounds to the next.
    members: the first, and the one after the last.
  """

  frequency: int
  members: tuple[int, int]

  @property
  def title(self) -> str:
    """Name of the group."""
    first, end = self.members
    return f"every {self.frequency}, members {first} to {end - 1}"

  def has(self, member: int) -> bool:
    """Returns whether a member is in the group."""
    return self.members[0] <= member < self.members[1]


def groups(run: Run) -> list[Group]:
  """Returns the groups of a run; none if its controller has none."""
  texts = run.settings.get("frequencies")
  if run.settings.get("controller") != "mf_pbt" or not isinstance(texts, list):
    return []
  num_members = len(ancestry.by_member(run))
  size = num_members // max(len(texts), 1)
  if not size or not all(str(x).isdecimal() for x in texts):
    return []
  return [
    Group(int(text), (i * size, (i + 1) * size)) for i, text in enumerate(texts)
  ]


def best_returns(run: Run) -> Figure:
  """Describes the best return of each group."""
  traces = []
  for i, group in enumerate(groups(run)):
    best: dict[int, float] = {}
    for row in run.members:
      if group.has(row["member"]) and ancestry.is_number(row["return"]):
        step, value = row["step"], row["return"]
        best[step] = max(value, best.get(step, value))
    color = PALETTE[i % len(PALETTE)]
    traces.append(Trace([*best], [*best.values()], group.title, color))
  return figure.plot(traces, figure.STEPS, "best return in the group")


def migrations(run: Run) -> list[list[int]]:
  """Counts the migrants to each group (rows) from each group (columns)."""
  found = groups(run)
  moves = [
    (row["child"], row["parent"])
    for row in run.lineage
    if row["operator"] == "migrated"
  ]
  return [
    [sum(to.has(a) and from_.has(b) for a, b in moves) for from_ in found]
    for to in found
  ]
