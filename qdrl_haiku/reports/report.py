"""The report of some runs."""

from collections.abc import Mapping, Sequence
from typing import Any

from qdrl_haiku.reports import aggregation, sections
from qdrl_haiku.reports.page import Page
from qdrl_haiku.reports.repertoire import Elites
from qdrl_haiku.reports.runs import Run


def render(
  runs: Sequence[Run],
  elites: Mapping[str, Elites],
  ways: Mapping[str, Mapping[str, Any]],
) -> str:
  """Makes the page.

  Args:
    runs: of `read_runs`, at least one.
    elites: of `read_elites`, by run's name, of those that have a repertoire.
    ways: of `roll_out`, by run's name, of those whose elites were rolled out.

  Returns:
    HTML that needs no other file.

  Raises:
    ValueError: if a file of a run is damaged.
  """
  names = ", ".join(run.name for run in runs)
  report = Page(f"Report: {names}" if len(runs) < 4 else f"{len(runs)} runs")
  sections.overview(report, runs)
  if len(runs) > 1:
    sections.comparison(report, aggregation.groups(runs))
  for run in runs:
    sections.one_run(report, run, elites.get(run.name), ways.get(run.name))
  return report.render()
