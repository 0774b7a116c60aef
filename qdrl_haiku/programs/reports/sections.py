"""The report of some runs: all of them together, then each."""

from collections.abc import Mapping, Sequence

from qdrl_haiku import checks
from qdrl_haiku.programs.drawing import figure as figures
from qdrl_haiku.programs.reports import (
  aggregation,
  controller_figures,
  curves,
  elite_table,
  member_figures,
  page,
  skill_figures,
)
from qdrl_haiku.programs.reports.aggregation import ABSENT, setting_text
from qdrl_haiku.programs.reports.elite_table import Elites
from qdrl_haiku.programs.reports.page import Section
from qdrl_haiku.programs.reports.runs import Run

# Metrics by which runs are compared, where they have them.
_COMPARED = (
  "pbt/best_return", "eval/episode_return", "qd/qd_score", "qd/coverage",
  "qd/max_fitness", "eval/coverage", "diayn/mutual_information_lower_bound",
  "diayn/discriminator_accuracy")


def render_sections(
  runs: Sequence[Run], elites: Mapping[str, Elites],
  rollouts: Mapping[str, dict[str, object]], refresh: int | None = None,
) -> str:
  """Makes the page, HTML that needs no other file.

  Args:
    runs: of `read_runs`, at least one.
    elites: of `read_elite_table`, by run's name, where there is a repertoire.
    rollouts: of `roll_out_elites`, by run's name, where elites acted again.
    refresh: seconds after which a browser reads the page anew, if it's to.

  Returns:
    The page.

  Raises:
    ValueError: if a file of a run is damaged.
  """
  sections = [_runs(runs), _configuration(runs)]
  compared = _comparison(runs) if len(runs) > 1 else []
  if compared:
    sections.append(Section(2, "Comparison", compared))
  for run in runs:
    none = [page.page_text("No generation has ended yet.")]
    sections.append(Section(2, run.name, [] if run.metrics else none))
    parts = _parts(run, elites.get(run.name), rollouts.get(run.name))
    sections += [Section(3, *part) for part in parts.items() if part[1]]
  names = ", ".join(run.name for run in runs)
  title = f"Report: {names}" if len(runs) < 4 else f"{len(runs)} runs"
  return page.render_page(title, sections, refresh)


def _parts(
  run: Run, elites: Elites | None, rollouts: dict[str, object] | None
) -> dict[str, list[str]]:
  """Returns the contents of a run's sections, by title; none of some."""
  learning = "Greedy episodes after each generation."
  if run.members:
    learning += (
      " A pale line is one member; that of a member which was replaced ends, "
      "and its successor's begins at the parent.")
  return {
    "Learning curves": _figures((curves.learning_curves(run), learning)),
    "Hyperparameter schedules": _figures(
      member_figures.member_hyperparameters_figure(run)),
    "Lineage": _figures((
      member_figures.member_tree_figure(run),
      "Each row is a place in the population. The winner is the best member "
      "of the last generation.")),
    "What the controller believed": _figures(
      controller_figures.controller_predictions_figure(run)),
    "Groups and migrations": _groups(run),
    "Repertoire": _repertoire(run, elites, rollouts),
    "Skills": _figures(
      (
        skill_figures.skill_trajectories_figure(run.path),
        "Where the latest episodes of each skill went; dots are their ends."),
      (
        curves.metric_curves(run, *curves.SKILL_METRICS),
        "How far skills go, and how well they can be told apart: means over "
        "the population."),
      (skill_figures.skill_returns_figure(run), "Each skill, in its colour.")),
    "Diagnostics": _figures((
      curves.metric_curves(run, "training/"),
      "Means over the population; what has always been 0 is left out."))}


def _runs(runs: Sequence[Run]) -> Section:
  head = ["run", "environment", "learner", "seed", "generations", "steps",
          "best return", "minutes"]
  rows = []
  for run in runs:
    of_agents = aggregation.columns_to_aggregate(run, "eval/episode_return")
    columns = ("return", "qd/max_fitness", *of_agents)
    returns = [
      row[name]
      for name in columns
      for row in (*run.members, *run.metrics)
      if checks.is_finite_number(row.get(name))]
    step, planned = run.last.get("step", 0), run.settings.get("num_timesteps")
    is_early = checks.is_finite_number(planned) and step < planned
    walltime = run.last.get("walltime")
    names = ("env_name", "learner", "seed")
    rows.append([
      run.name,
      *(setting_text(run.settings.get(name, ABSENT)) for name in names),
      run.last.get("generation", ABSENT),
      f"{step} of at most {planned}" if is_early else step,
      f"{max(returns):.5g}" if returns else ABSENT,
      f"{walltime / 60:.1f}" if checks.is_finite_number(walltime) else ABSENT])
  return Section(2, "Runs", [page.page_table(head, rows)])


def _configuration(runs: Sequence[Run]) -> Section:
  """Returns the settings and versions, those first that differ."""
  content = []
  names = [run.name for run in runs]
  different = aggregation.aggregation_differences(runs)
  if different:
    text = "The runs differ in these settings, seeds and places aside:"
    rows = [[name, *values] for name, values in different.items()]
    content = [page.page_text(text), page.page_table(["setting", *names], rows)]
  same = [
    (name, setting_text(value))
    for name, value in sorted(runs[0].identity.items())
    if name not in different and name not in aggregation.DERIVED]
  title = "All settings" if len(runs) == 1 else "Settings that are the same"
  content.append(page.page_details(title, page.page_pairs(same)))
  versions = [
    [name, *(setting_text(run.versions.get(name, ABSENT)) for run in runs)]
    for name in dict.fromkeys(name for run in runs for name in run.versions)]
  if versions:
    table = page.page_table(["version", *names], versions)
    content.append(page.page_details("Versions and devices", table))
  return Section(2, "Configuration", content)


def _comparison(runs: Sequence[Run]) -> list[str]:
  """Returns what runs can be compared by, seeds aggregated."""
  groups = aggregation.aggregate_runs(runs)
  panels, rows = [], []
  for metric in _COMPARED:
    traces: list[figures.Trace] = []
    for i, group in enumerate(groups):
      seeds = group.series(metric)
      if not seeds:
        continue
      curve = aggregation.aggregate_curves(group.label, seeds)
      if curve.steps:
        traces += figures.comparison_curve(curve, i)
        interval = f"{curve.low[-1]:.5g} to {curve.high[-1]:.5g}"
        number, all_seeds = str(len(seeds)), group.num_seeds(metric)
        if len(seeds) < all_seeds:
          number += f" of {all_seeds}, without those that never were finite"
        rows.append([
          group.label, curves.curve_label(metric), number, curve.steps[-1],
          f"{curve.values[-1]:.5g}", interval if len(seeds) > 1 else ABSENT])
    if traces:
      axis = figures.Axis(figures.STEPS)
      panels.append(figures.Panel(curves.curve_label(metric), traces, axis))
  if not panels:
    return []
  head = ["runs", "at the end", "seeds", "step", "interquartile mean",
          "95 % interval"]
  return [
    page.page_text(
      "Runs whose settings are equal but for the seed count as one. Lines are "
      "interquartile means over seeds, bands their 95 % bootstrap intervals, "
      "at the generations that all seeds have reached."),
    page.page_figure(figures.Figure(panels), "What the runs have in common."),
    page.page_table(head, rows)]


def _figures(*captioned: tuple[figures.Figure | None, str]) -> list[str]:
  """Returns those figures that there are, with their captions."""
  return [
    page.page_figure(figure, caption)
    for figure, caption in captioned
    if figure is not None]


def _groups(run: Run) -> list[str]:
  """Returns the groups of the population, and who migrated between them."""
  groups = controller_figures.controller_groups(run)
  if not groups:
    return []
  rows = []
  for to in groups:
    origins = [
      row["parent"]
      for row in run.lineage
      if row["operator"] == "migrated" and row["child"] in to.members]
    counts = (sum(x in by.members for x in origins) for by in groups)
    rows.append([to.title, *counts])
  head = ["migrants to", *(f"from every {x.frequency}" for x in groups)]
  figure = page.page_figure(
    controller_figures.controller_returns_figure(run),
    "Each group decides at its own frequency, counted in decisions.")
  return [figure, page.page_table(head, rows)]


def _repertoire(
  run: Run, elites: Elites | None, rollouts: dict[str, object] | None
) -> list[str]:
  """Returns the elites and the metrics of a repertoire."""
  content = []
  if elites is not None:
    # Without members, variation changed the hyperparameters of agents that
    # never learned with them.
    if not run.members:
      elites = elites._replace(hyperparams={})
    data = elite_table.elite_table_to_json(elites)
    if rollouts is not None:
      data["rollouts"] = rollouts
    content.append(page.page_elites(data, _caption(elites)))
  caption = "How the repertoire was filled."
  if checks.is_finite_number(run.last.get("qd/corrected_coverage")):
    caption += (
      " Elites are the luckiest of many: evaluated again, and put into an "
      "empty repertoire by their means, they fill fewer cells, and worse.")
  return content + _figures((curves.metric_curves(run, "qd/"), caption))


def _caption(elites: Elites) -> str:
  has_cells = elites.repertoire.has_cells
  num_cells = elites.repertoire.fitness.size
  caption = (
    f"After {elites.step} steps, {len(elites.cells)} of {num_cells} "
    f"{'cells' if has_cells else 'places'} are occupied. Click one to see its "
    "elite.")
  if not has_cells:
    caption += (
      " Where several are at one place of the picture, the fittest is drawn.")
  elif len(elites.names) > 2:
    caption += (
      f" Of the {len(elites.names)} axes of the descriptor the first two are "
      "drawn; where several elites are in one place, the fittest.")
  if elites.finds:
    finds = [f"{name} {count}" for name, count in elites.finds.items()]
    caption += f" Found by: {', '.join(finds)}."
  if elites.again is not None:
    caption += (
      " Behind ± is the standard deviation over the episodes in which the "
      "elite was evaluated again.")
  return caption
