"""The winner of a population, and the members that it descends from."""

from typing import NamedTuple

from qdrl_haiku import checks
from qdrl_haiku.controllers import lineage
from qdrl_haiku.programs.reports.runs import Run
from qdrl_haiku.types import Record


class Ancestry(NamedTuple):
  """The best member of the last generation, and its ancestors."""

  member: int
  # Member by generation; if it descends from an elite of a repertoire, from the
  # generation in which that became a member.
  ancestors: dict[int, int]
  rows: list[Record]  # The ancestors' rows of `pbt_members.jsonl`.

  @property
  def title(self) -> str:
    """Name in figures."""
    return f"ancestry of the winner, member {self.member}"


def winner_ancestry(run: Run) -> Ancestry | None:
  """Finds the winner and its ancestors."""
  last = max((row["generation"] for row in run.members), default=0)
  returns = {
    row["member"]: row["return"]
    for row in run.members
    if row["generation"] == last and checks.is_finite_number(row.get("return"))}
  if not returns:
    return None
  member = max(returns, key=returns.__getitem__)
  # What was decided after the last evaluation has not been evaluated.
  before = [row for row in run.lineage if row["generation"] < last]
  try:
    chain = lineage.trace_lineage(before, member)
  except ValueError:  # There are no rows about it.
    chain = [{"generation": last - 1, "child": member}]
  ends = [row["generation"] for row in chain[1:]] + [last]
  ancestors = {
    generation: row["child"]
    for row, end in zip(chain, ends, strict=True)
    for generation in range(row["generation"] + 1, end + 1)}
  rows = member_ancestry_rows(run)
  path = [rows.get(x, {}).get(i) for i, x in ancestors.items()]
  return Ancestry(member, ancestors, [row for row in path if row])


def ancestry_replacements(run: Run) -> dict[tuple[int, int], Record]:
  """Returns the lineage's rows by generation and replaced member."""
  return {
    (row["generation"], row["child"]): row
    for row in run.lineage
    if row["operator"] != "init"}


def member_ancestry_rows(run: Run) -> dict[int, dict[int, Record]]:
  """Returns the rows of members, by member and generation."""
  found: dict[int, dict[int, Record]] = {}
  for row in sorted(run.members, key=lambda x: (x["member"], x["generation"])):
    found.setdefault(row["member"], {})[row["generation"]] = row
  return found
