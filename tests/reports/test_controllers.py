"""Tests of what a report tells of PB2's predictions and of MF-PBT's groups."""

import pytest

from qdrl_haiku import reports
from qdrl_haiku.reports import controller_figures
from tests.reports import common

# Of the children of generations 2, 3 and 4, see `common`.
_PREDICTIONS = {2: (1.0, 0.5), 3: (5.0, 2.0), 4: (None, None)}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
  """A run in which children were suggested, and changes were modelled."""
  path = tmp_path_factory.mktemp("logs")
  run = common.population(path / "run", controller="pb2")
  lineage = []
  for row in run.lineage:
    change, deviation = _PREDICTIONS.get(row["generation"], (None, None))
    more = {"predicted_change": change, "predicted_deviation": deviation}
    lineage.append(row | more if row["generation"] else row)
  metrics = [
    row
    | {
      "controller/length_scale/discount": 2.0 * row["generation"],
      "controller/num_changes": 3 * (row["generation"] - 1),
    }
    for row in run.metrics
  ]
  return run._replace(lineage=lineage, metrics=metrics)


@pytest.fixture(scope="module")
def migrating(tmp_path_factory):
  """A run of three groups of one; a member migrated from the last one."""
  run = common.population(
    tmp_path_factory.mktemp("logs") / "run", controller="mf_pbt",
    frequencies=["1", "2", "6"],
  )  # fmt: skip
  lineage = [
    row | ({"operator": "migrated"} if row["generation"] == 2 else {})
    for row in run.lineage
  ]
  return run._replace(lineage=lineage)


def test_predicted_changes_are_drawn_against_observed_ones(run):
  found, how_well = controller_figures.controller_predictions_figure(run)
  line, bars, points = found.panels[0].traces
  # Member 0 took over from 2, which had 6, and came to 5; then 1 from 0, which
  # had 5, and came to 9.
  assert (points.x, points.y) == ([1.0, 5.0], [-1.0, 4.0])
  assert bars.x == (0.5, 1.5, None, 3.0, 7.0, None)
  assert bars.y == (-1, -1, None, 4, 4, None)
  assert line.x == line.y == [-1.0, 5.0]
  assert points.texts[0] == "member 0 of member 2, after generation 2"
  assert how_well.startswith(
    "Of 2 predicted changes 1 had the predicted sign, and 1 were within one"
  )
  # Of fitness, where that is not the return.
  members = [row | {"fitness": 10 * row["return"]} for row in run.members]
  found, _ = controller_figures.controller_predictions_figure(
    run._replace(members=members)
  )
  assert found.panels[0].traces[2].y == [44.0, 85.0]


def test_the_page_has_what_the_controller_has(run, migrating, tmp_path):
  plain = reports.render_sections([common.population(tmp_path / "run")], {}, {})
  assert "controller believed" not in plain and "migrants" not in plain
  assert ">What the controller believed<" in reports.render_sections(
    [run], {}, {}
  )
  page = reports.render_sections([migrating], {}, {})
  assert ">Groups and migrations<" in page
  first = '<th scope="row">every 1, members 0 to 0</th>'
  assert first + "<td>0</td><td>0</td><td>1</td>" in page
  found = controller_figures.controller_returns_figure(migrating)
  _, second, third = found.panels[0].traces
  assert third.name == "every 6, members 2 to 2"
  assert (second.x, second.y) == ([100, 200, 300, 400], [2.0, 2.5, 1.0, 9.0])
