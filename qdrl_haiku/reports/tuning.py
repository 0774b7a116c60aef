"""The sections of a report that are of a kind of controller."""

from qdrl_haiku.reports import figure, groups, model_diagnostics, page
from qdrl_haiku.reports.page import Page
from qdrl_haiku.reports.runs import Run


def add(report: Page, run: Run) -> None:
  """Adds what the controller believed, and its groups, if it has any."""
  _predictions(report, run)
  _groups(report, run)


def _predictions(report: Page, run: Run) -> None:
  predictions = model_diagnostics.predictions(run)
  scales = model_diagnostics.length_scales(run)
  if predictions is None and scales is None:
    return
  report.heading(3, "What the controller believed")
  if predictions is not None:
    report.figure(predictions, model_diagnostics.accuracy(run))
  if scales is not None:
    report.figure(
      scales,
      "How far two values of a hyperparameter are apart, in shares of its "
      "range, for the changes of fitness to differ: the shorter, the more it "
      "was found to matter.",
    )
    ranking = model_diagnostics.ranking(run)
    rows = [[name, f"{scale:.3g}"] for name, scale in ranking]
    report.html(page.table(["hyperparameter", "length scale at the end"], rows))


def _groups(report: Page, run: Run) -> None:
  found = groups.groups(run)
  if not found:
    return
  report.heading(3, "Groups and migrations")
  traces = []
  for i, group in enumerate(found):
    curve = groups.best_returns(run, group)
    traces.append(
      figure.line(
        [step for step, _ in curve],
        [value for _, value in curve],
        group.title,
        figure.PALETTE[i % len(figure.PALETTE)],
      )
    )
  report.figure(
    figure.plot(traces, figure.STEPS, "best return in the group"),
    "Each group decides at its own frequency, counted in decisions.",
  )
  head = ["migrants to", *(f"from every {x.frequency}" for x in found)]
  counts = groups.migrations(run, found)
  report.html(
    page.table(
      head,
      [[group.title, *row] for group, row in zip(found, counts, strict=True)],
    )
  )
