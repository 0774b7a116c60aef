"""Tests of the figures of a run's curves, family tree and controller."""

import numpy as np
import pytest

from qdrl_haiku.programs import reports
from qdrl_haiku.programs.reports import (
  ancestry,
  controller_figures,
  curves,
  member_figures,
  pictures,
)
from qdrl_haiku.programs.storage.directory import RunDirectory
from tests.programs.reports import common


@pytest.fixture(scope="module")
def run(tmp_path_factory):
  """Of three members, of which two were replaced in time."""
  ranges = {
    "discount": {"kind": "OneMinusLogUniform"},
    "policy_learning_rate": {"kind": "LogUniform"}}
  path = tmp_path_factory.mktemp("logs") / "run"
  return common.population(path, ranges=ranges)


def _trace(figure, name):
  (panel,) = figure.panels
  (trace,) = [x for x in panel.traces if x.name.startswith(name)]
  return trace


def _panel(figure, title):
  (panel,) = [x for x in figure.panels if x.title == title]
  return panel


def _cut(trace):
  """The pieces of a broken line."""
  pieces, piece = [], []
  for point in [*zip(trace.x, trace.y, strict=True), (None, None)]:
    if point[0] is not None:
      piece.append(point)
    elif piece:
      pieces.append(piece)
      piece = []
  return pieces


def test_the_winner_is_traced_back_through_its_parents(run):
  won = ancestry.winner_ancestry(run)
  assert won.member == 1
  assert won.ancestors == common.ANCESTORS
  assert [row["return"] for row in won.rows] == [3, 6, 5, 9]
  # What is decided after the last evaluation is no ancestry.
  row = {"generation": 4, "step": 400, "child": 1, "parent": 2}
  row |= {"operator": "perturb", "new_hyperparams": {"tau": 0.1}}
  won = ancestry.winner_ancestry(run._replace(lineage=[*run.lineage, row]))
  assert won.ancestors == common.ANCESTORS
  assert ancestry.winner_ancestry(run._replace(lineage=[])).ancestors == {4: 1}
  # A member that diverged does not win.
  rows = [x | {"return": None} if x["member"] == 1 else x for x in run.members]
  assert ancestry.winner_ancestry(run._replace(members=rows)).member == 0
  gone = [row | {"return": None} for row in rows]
  assert ancestry.winner_ancestry(run._replace(members=gone)) is None


def test_ancestry_begins_where_an_elite_became_a_member(run):
  rows = [row for row in run.lineage if row["generation"] != 2]
  sample = {"generation": 2, "step": 200, "child": 0, "parent": -1, "cell": 5}
  sample |= {"operator": "sample", "new_hyperparams": {"tau": 0.1}}
  run = run._replace(lineage=[*rows, sample])
  assert ancestry.winner_ancestry(run).ancestors == {3: 0, 4: 1}
  mark = _trace(
    member_figures.member_tree_figure(run), "elite of the repertoire")
  assert (mark.x, mark.y) == ([3], [0])
  assert "member 0 from cell 5, after generation 2" in mark.texts[0]


def test_a_childs_curve_leaves_its_parents(run):
  found = curves.learning_curves(run)
  assert _cut(_trace(found, "members")) == [
    [(100, 1), (200, 4)],
    [(200, 6), (300, 5), (400, 8)],
    [(100, 2), (200, 2.5), (300, 1)],
    [(300, 5), (400, 9)],
    [(100, 3), (200, 6), (300, 7), (400, 2)],
    # After the last evaluation there is nothing yet but the parent.
    [(400, 9)]]
  assert _trace(found, "best").y == [3, 6, 7, 9]
  assert _trace(found, "ancestry").y == [3, 6, 5, 9]
  (panel,) = found.panels
  assert panel.x.title == "environment steps per agent"
  assert panel.y.title == "episode return"


def test_any_number_of_seeds_leaves_room_for_their_curves(tmp_path):
  directory = common.write_seeds(tmp_path / "run", 100)
  (run,) = reports.read_runs([str(directory.path)])
  found = curves.learning_curves(run)
  *seeds, _, mean = found.panels[0].traces
  assert mean.name == "interquartile mean of 100 seeds, 95 % interval"
  assert {x.name for x in seeds} == {"seeds"}
  assert seeds[7].hover.startswith("seed 7\n")
  assert list(seeds[7].y) == [107.0, 207.0, 307.0]


def test_schedules_are_of_what_changed_on_axes_as_searched(run):
  found, caption = member_figures.member_hyperparameters_figure(run)
  assert len(found.panels) == 2
  panel = _panel(found, "policy learning rate")
  everyone, winner = panel.traces
  assert panel.y.is_log
  np.testing.assert_allclose(winner.y, 0.01)
  # A value holds from one evaluation to the next, the first from the start.
  steps = [0, 100, 100, 200, 200, 300, 300, 400]
  np.testing.assert_allclose(
    _cut(everyone)[0], [*zip(steps, [1e-4] * 4 + [1e-2] * 4, strict=True)])
  panel = _panel(found, "1 - discount")
  assert panel.y.is_log
  assert panel.traces[1].y == pytest.approx([0.001] * 8, rel=1e-3)
  assert caption.endswith(" The same all the time: tau 0.01.")
  # A choice is shown by its values.
  ranges = {"discount": {"kind": "Choice", "values": [0.9, 0.99, 0.999]}}
  run = run._replace(settings={"ranges": ranges})
  found, _ = member_figures.member_hyperparameters_figure(run)
  panel = _panel(found, "discount")
  assert panel.y.names == ["0.9", "0.99", "0.999"]
  everyone, winner = panel.traces
  assert winner.y == [2] * 8 and "0.999" in winner.texts[0]
  assert everyone.y[:8] == [0] * 4 + [2] * 4
  # Runs of older versions don't say how they searched.
  run = run._replace(settings={})
  old, _ = member_figures.member_hyperparameters_figure(run)
  assert not any(panel.y.is_log for panel in old.panels)


def test_the_tree_has_a_line_from_each_parent_to_its_child(run):
  found = member_figures.member_tree_figure(run)
  assert _cut(_trace(found, "takes over")) == [
    [(2, 2), (3, 0)], [(3, 0), (4, 1)]]
  assert _cut(_trace(found, "goes on")) == [
    [(0, 0), (2, 0)],
    [(3, 0), (4, 0)],
    [(0, 1), (3, 1)],
    [(4, 1), (4, 1)],
    [(0, 2), (4, 2)]]
  assert _cut(_trace(found, "ancestry")) == [
    [(0, 2), (1, 2), (2, 2), (3, 0), (4, 1)]]
  mark = _trace(found, "child")
  assert list(zip(mark.x, mark.y, strict=True)) == [(3, 0), (4, 1)]
  assert "policy_learning_rate: 0.0001 → 0.01" in mark.texts[0]


def test_a_run_has_pictures_of_what_it_has(run, tmp_path):
  (panel,) = curves.metric_curves(run, "training/").panels
  assert panel.title == "critic loss"
  directory = RunDirectory(tmp_path)
  directory.begin(common.SETTINGS)
  assert pictures.draw_run_pictures(tmp_path) == []
  assert not (tmp_path / "plots").exists()
  directory = common.write_population(tmp_path / "run")
  # A diverged member's numbers.
  rows = directory.rows("pbt_members.jsonl")
  rows[4]["hyperparams"]["discount"] = rows[5]["return"] = None
  (tmp_path / "run" / "pbt_members.jsonl").unlink()
  directory.append("pbt_members.jsonl", rows)
  files = pictures.draw_run_pictures(tmp_path / "run")
  assert {path.name for path in files} == {
    "learning_curves.png", "diagnostics.png", "hyperparameters.png",
    "lineage.png"}
  assert all(path.stat().st_size > 5000 for path in files)


# Of the children of generations 2, 3 and 4, see `common`.
_PREDICTIONS = {2: (1.0, 0.5), 3: (5.0, 2.0), 4: (None, None)}


@pytest.fixture(scope="module")
def suggested(tmp_path_factory):
  """A suggested in which children were suggested, and changes were modelled."""
  path = tmp_path_factory.mktemp("logs")
  suggested = common.population(path / "run", controller="pb2")
  lineage = []
  for row in suggested.lineage:
    change, deviation = _PREDICTIONS.get(row["generation"], (None, None))
    more = {"predicted_change": change, "predicted_deviation": deviation}
    lineage.append(row | more if row["generation"] else row)
  metrics = [
    row
    | {
      "controller/length_scale/discount": 2.0 * row["generation"],
      "controller/num_changes": 3 * (row["generation"] - 1)}
    for row in suggested.metrics]
  return suggested._replace(lineage=lineage, metrics=metrics)


@pytest.fixture(scope="module")
def migrating(tmp_path_factory):
  """A suggested of three groups of one; a member migrated from the last one."""
  suggested = common.population(
    tmp_path_factory.mktemp("logs") / "run", controller="mf_pbt",
    frequencies=["1", "2", "6"])
  lineage = [
    row | ({"operator": "migrated"} if row["generation"] == 2 else {})
    for row in suggested.lineage]
  return suggested._replace(lineage=lineage)


def test_predicted_changes_are_drawn_against_observed_ones(suggested):
  found, how_well = controller_figures.controller_predictions_figure(suggested)
  line, bars, points = found.panels[0].traces
  # Member 0 took over from 2, which had 6, and came to 5; then 1 from 0, which
  # had 5, and came to 9.
  assert (points.x, points.y) == ([1.0, 5.0], [-1.0, 4.0])
  assert bars.x == (0.5, 1.5, None, 3.0, 7.0, None)
  assert bars.y == (-1, -1, None, 4, 4, None)
  assert line.x == line.y == [-1.0, 5.0]
  assert points.texts[0] == "member 0 of member 2, after generation 2"
  assert how_well.startswith(
    "Of 2 predicted changes 1 had the predicted sign, and 1 were within one")
  # Of fitness, where that is not the return.
  members = [row | {"fitness": 10 * row["return"]} for row in suggested.members]
  found, _ = controller_figures.controller_predictions_figure(
    suggested._replace(members=members))
  assert found.panels[0].traces[2].y == [44.0, 85.0]


def test_the_page_has_what_the_controller_has(suggested, migrating, tmp_path):
  plain = reports.render_sections([common.population(tmp_path / "run")], {}, {})
  assert "controller believed" not in plain and "migrants" not in plain
  assert ">What the controller believed<" in reports.render_sections(
    [suggested], {}, {})
  page = reports.render_sections([migrating], {}, {})
  assert ">Groups and migrations<" in page
  first = '<th scope="row">every 1, members 0 to 0</th>'
  assert first + "<td>0</td><td>0</td><td>1</td>" in page
  found = controller_figures.controller_returns_figure(migrating)
  _, second, third = found.panels[0].traces
  assert third.name == "every 6, members 2 to 2"
  assert (second.x, second.y) == ([100, 200, 300, 400], [2.0, 2.5, 1.0, 9.0])
