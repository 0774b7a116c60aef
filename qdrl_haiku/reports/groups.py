"""Draws the groups of MF-PBT, which evolve at different frequencies."""

from typing import NamedTuple

from qdrl_haiku.reports import ancestry
from qdrl_haiku.reports.runs import Row, Run


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


def groups(run: Run) -> list[Group]:
  """Returns the groups of a run."""
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


def migrations(run: Run, groups: list[Group]) -> list[list[int]]:
  """Counts who came from where."""
  counts = [[0] * len(groups) for _ in groups]
  for row in run.lineage:
    if row["operator"] == "migrated":
      to, from_ = _group(row["child"], groups), _group(row["parent"], groups)
      if to is not None and from_ is not None:
        counts[to][from_] += 1
  return counts


def best_returns(run: Run, group: Group) -> list[tuple[int, float]]:
  """Returns the best of a group in each generation."""
  by_step: dict[int, list[Row]] = {}
  for row in run.members:
    if group.members[0] <= row["member"] < group.members[1]:
      by_step.setdefault(row["step"], []).append(row)
  best = {
    step: [row["return"] for row in rows if ancestry.is_number(row["return"])]
    for step, rows in by_step.items()
  }
  return [(step, max(values)) for step, values in best.items() if values]


def _group(member: int, groups: list[Group]) -> int | None:
  for i, group in enumerate(groups):
    if group.members[0] <= member < group.members[1]:
      return i
  return None
