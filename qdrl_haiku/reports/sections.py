"""Writes the sections of a report: all runs together, then each."""

import html
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from qdrl_haiku.reports import (
  aggregation,
  ancestry,
  curves,
  figure,
  page,
  repertoire,
  schedules,
  skills,
  tuning,
)
from qdrl_haiku.reports.aggregation import ABSENT, Group, show
from qdrl_haiku.reports.page import Page
from qdrl_haiku.reports.repertoire import Elites
from qdrl_haiku.reports.runs import Run

# What runs are compared by, where they have it.
_COMPARED = (
  "pbt/best_return",
  "eval/episode_return",
  "qd/qd_score",
  "qd/coverage",
  "qd/max_fitness",
  "diayn/mutual_information_lower_bound",
  "diayn/discriminator_accuracy",
)


def overview(report: Page, runs: Sequence[Run]) -> None:
  """Adds what the runs are, and what they were set to."""
  report.heading(2, "Runs")
  head = ["run", "environment", "learner", "seed", "generations", "steps",
          "best return", "minutes"]  # fmt: skip
  report.html(page.table(head, map(_summary, runs)))
  report.heading(2, "Configuration")
  names = ["setting", *(run.name for run in runs)]
  different = aggregation.differences(runs)
  if different:
    report.text("The runs differ in these settings, seeds and places aside:")
    rows = [[name, *map(show, row)] for name, row in different.items()]
    report.html(page.table(names, rows))
  same = {
    name: value
    for name, value in sorted(runs[0].identity.items())
    if name not in different
  }
  settings = "".join(
    f"<div><dt>{html.escape(name)}</dt><dd>{html.escape(show(value))}</dd></div>"
    for name, value in same.items()
  )
  title = "All settings" if len(runs) == 1 else "Settings that are the same"
  report.html(page.details(title, f"<dl>{settings}</dl>"))
  libraries = dict.fromkeys(name for run in runs for name in run.versions)
  rows = [
    [name, *(show(run.versions.get(name, ABSENT)) for run in runs)]
    for name in libraries
  ]
  if rows:
    names = ["version", *names[1:]]
    report.html(page.details("Versions and devices", page.table(names, rows)))


def comparison(report: Page, groups: Sequence[Group]) -> None:
  """Adds what can be compared, seeds aggregated."""
  items: list[figure.Panel] = []
  rows: list[list[Any]] = []
  for metric in _COMPARED:
    traces = []
    for group, color in zip(groups, itertools.cycle(figure.PALETTE)):
      seeds = group.series(metric)
      curve = aggregation.aggregated(group.label, seeds) if seeds else None
      if curve is not None and curve.steps:
        traces += curves.band(curve, color)
        rows.append(
          [group.label, curves.label(metric), len(seeds), *_last(curve)]
        )
    if traces:
      items.append(figure.Panel(curves.label(metric), traces))
  if not items:
    return
  report.heading(2, "Comparison")
  report.text(
    "Runs whose settings are equal but for the seed count as one. Lines are "
    "interquartile means over seeds, bands their 95 % bootstrap intervals, at "
    "the generations that all seeds have reached."
  )
  report.figure(
    figure.panels(items, figure.STEPS), "What the runs have in common."
  )
  head = ["runs", "at the end", "seeds", "step", "interquartile mean",
          "95 % interval"]  # fmt: skip
  report.html(page.table(head, rows))


def one_run(
  report: Page,
  run: Run,
  elites: Elites | None,
  ways: Mapping[str, Any] | None,
) -> None:
  """Adds all that there is of a run."""
  report.heading(2, run.name)
  if not run.metrics:
    report.text("No generation has ended yet.")
  _learning(report, run)
  _population(report, run)
  tuning.add(report, run)
  _repertoire(report, run, elites, ways)
  _skills(report, run)
  diagnostics = curves.metric_panels(run, "training/")
  if diagnostics is not None:
    report.heading(3, "Diagnostics")
    report.figure(diagnostics, "Means over the population.")


def _learning(report: Page, run: Run) -> None:
  learning = curves.learning_curves(run)
  if learning is None:
    return
  report.heading(3, "Learning curves")
  caption = "Greedy episodes after each generation."
  if run.members:
    caption = (
      "Greedy episodes after each generation. A pale line is one member; that "
      "of a member which was replaced ends, and its successor's begins at the "
      "parent."
    )
  report.figure(learning, caption)


def _population(report: Page, run: Run) -> None:
  hyperparameters, tree = schedules.hyperparameters(run), schedules.tree(run)
  if hyperparameters is not None:
    report.heading(3, "Hyperparameter schedules")
    constants = ", ".join(
      f"{name} {value:g}"
      for name, value in schedules.constants(run).items()
      if value is not None
    )
    same = f" The same all the time: {constants}." if constants else ""
    report.figure(
      hyperparameters,
      "With what the steps up to each evaluation were trained. Axes are "
      f"logarithmic where the search was.{same}",
    )
  if tree is not None:
    report.heading(3, "Lineage")
    report.figure(
      tree,
      "Each row is a place in the population. The winner is the best member "
      "of the last generation.",
    )


def _repertoire(
  report: Page,
  run: Run,
  elites: Elites | None,
  ways: Mapping[str, Any] | None,
) -> None:
  metrics = curves.metric_panels(run, "qd/")
  if metrics is None and elites is None:
    return
  report.heading(3, "Repertoire")
  if elites is not None:
    cells = "cells" if elites.has_cells else "places"
    caption = (
      f"After {elites.step} steps, {len(elites.cells)} of "
      f"{elites.num_cells} {cells} are occupied. Click one to see its elite."
    )
    if not elites.has_cells:
      caption += (
        " Without cells each stays that is fit or far from all that are fitter."
        " Where several are at one place of the picture, the fittest is drawn."
      )
    elif len(elites.names) > 2:
      caption += (
        f" Of the {len(elites.names)} axes of the descriptor the first two "
        "are drawn; where several elites are in one place, the fittest."
      )
    if elites.finds:
      finds = [f"{name} {count}" for name, count in elites.finds.items()]
      caption += f" Who found them: {', '.join(finds)}."
    if elites.again is not None:
      caption += (
        " Behind ± is the standard deviation over the episodes in which the "
        "elite was evaluated again."
      )
    if not run.elites_have_trained:
      elites = elites._replace(hyperparams={})
    report.repertoire(repertoire.to_json(elites) | {"ways": ways}, caption)
  _second_look(report, run)
  if metrics is not None:
    report.figure(metrics, "How the repertoire was filled.")


def _second_look(report: Page, run: Run) -> None:
  """Adds how much of a repertoire is left without its elites' luck."""
  looked = [row for row in run.metrics if _is_corrected(row)]
  if not looked:
    return
  row = looked[-1]
  names = ("qd/coverage", "qd/qd_score", "qd/max_fitness")
  head = [f"after {row['step']} steps", "as found", "evaluated again", "lost"]
  rows = [
    [
      curves.label(name),
      *(
        f"{row[column]:.5g}"
        for column in (
          name,
          name.replace("qd/", "qd/corrected_"),
          name.replace("qd/", "qd/lost_"),
        )
      ),
    ]
    for name in names
    if ancestry.is_number(row.get(name))
  ]
  report.html(page.table(head, rows))
  report.text(
    "Elites are the luckiest of many. Evaluated again, and put into an empty "
    "repertoire by their means, they fill fewer cells, and worse."
  )


def _is_corrected(row: Mapping[str, Any]) -> bool:
  return ancestry.is_number(row.get("qd/corrected_coverage"))


def _skills(report: Page, run: Run) -> None:
  ways = skills.trajectories(skills.read_episodes(run.path))
  returns, metrics = skills.returns(run), curves.metric_panels(run, "diayn/")
  if ways is None and returns is None and metrics is None:
    return
  report.heading(3, "Skills")
  if ways is not None:
    report.figure(
      ways,
      "Where the latest episodes of each skill went; dots are their ends.",
    )
  if metrics is not None:
    report.figure(
      metrics, "How well skills can be told apart: means over the population."
    )
  if returns is not None:
    report.figure(returns, "Each skill, in its colour.")


def _summary(run: Run) -> list[Any]:
  """Returns a run's row in the table of runs."""
  last = run.metrics[-1] if run.metrics else {}
  returns = [
    row[name]
    for rows, name in (
      (run.members, "return"),
      (run.metrics, "eval/episode_return"),
      (run.metrics, "qd/max_fitness"),
    )
    for row in rows
    if ancestry.is_number(row.get(name))
  ]
  walltime = last.get("walltime")
  return [
    run.name,
    *(
      show(run.settings.get(name, ABSENT))
      for name in ("env_name", "learner", "seed")
    ),
    last.get("generation", ABSENT),
    _progress(last.get("step", 0), run.settings),
    f"{max(returns):.5g}" if returns else ABSENT,
    f"{walltime / 60:.1f}" if ancestry.is_number(walltime) else ABSENT,
  ]


def _progress(step: int, settings: Mapping[str, Any]) -> str:
  """Returns how far a run is."""
  num_timesteps = settings.get("num_timesteps")
  if ancestry.is_number(num_timesteps) and step < num_timesteps:
    # Of episodes, which may end early.
    at_most = "at most " if settings.get("emitter", "pbt") != "pbt" else ""
    return f"{step} of {at_most}{num_timesteps}"
  return str(step)


def _last(curve: aggregation.Series) -> list[str]:
  """Returns the end of a curve, as columns of a table."""
  interval = ABSENT
  if curve.low is not None and curve.high is not None:
    interval = f"{curve.low[-1]:.5g} to {curve.high[-1]:.5g}"
  return [str(curve.steps[-1]), f"{curve.values[-1]:.5g}", interval]
