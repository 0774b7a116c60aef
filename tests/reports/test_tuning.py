"""Tests of what a report tells of PB2's beliefs and of MF-PBT's groups."""

import json

import pytest

from qdrl_haiku import reports
from qdrl_haiku.reports import groups, model_diagnostics, schedules
from tests.reports import common

# Of the children of generations 2, 3 and 4, see `common`.
_BELIEFS = {2: (1.0, 0.5), 3: (5.0, 2.0), 4: (None, None)}


def _run(path, **changes):
  common.write_population(path, **changes)
  return reports.read_runs([str(path)])[0]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
  """A run in which children were suggested, and changes were modelled."""
  run = _run(tmp_path_factory.mktemp("logs") / "run", controller="pb2")
  lineage = []
  for row in run.lineage:
    change, deviation = _BELIEFS.get(row["generation"], (None, None))
    more = {"predicted_change": change, "predicted_deviation": deviation}
    lineage.append(row | more if row["generation"] else row)
  scales = {"discount": 2.0, "policy_learning_rate": 0.25}
  metrics = [
    row
    | {
      f"controller/length_scale/{name}": x * row["generation"]
      for name, x in scales.items()
    }
    | {"controller/num_changes": 3 * (row["generation"] - 1)}
    for row in run.metrics
  ]
  return run._replace(lineage=lineage, metrics=metrics)


@pytest.fixture(scope="module")
def migrating(tmp_path_factory):
  """A run of three groups of one, of whom the last migrated to the first."""
  path = tmp_path_factory.mktemp("logs") / "run"
  run = _run(path, controller="mf_pbt", frequencies=["1", "2", "6"])
  lineage = [
    row | ({"operator": "migrated"} if row["generation"] == 2 else {})
    for row in run.lineage
  ]
  return run._replace(lineage=lineage)


def test_predicted_changes_are_drawn_against_observed_ones(run):
  line, points = model_diagnostics.predictions(run)["data"]
  # Member 0 took over from 2, who had 6, and came to 5; then 1 from 0, who had
  # 5, and came to 9.
  assert points["x"] == [1.0, 5.0]
  assert points["y"] == [-1.0, 4.0]
  assert points["error_x"]["array"] == [0.5, 2.0]
  assert line["x"] == [-1.0, 5.0] and line["y"] == [-1.0, 5.0]
  assert points["text"][0] == "member 0 of member 2, after generation 2"
  assert model_diagnostics.accuracy(run).startswith(
    "Of 2 predicted changes 1 had the predicted sign, and 1 were within one"
  )


def test_what_was_observed_is_of_fitness_where_that_is_not_the_return(run):
  members = [row | {"fitness": 10 * row["return"]} for row in run.members]
  figure = model_diagnostics.predictions(run._replace(members=members))
  _, points = figure["data"]
  assert points["y"] == [44.0, 85.0]


def test_length_scales_are_drawn_from_when_changes_are_known(run):
  found = model_diagnostics.length_scales(run)
  traces = {trace["name"]: trace for trace in found["data"]}
  assert traces["discount"]["x"] == [200, 300, 400]
  assert traces["discount"]["y"] == [4.0, 6.0, 8.0]
  assert found["layout"]["yaxis"]["type"] == "log"
  assert model_diagnostics.ranking(run) == [
    ("policy_learning_rate", 1.0), ("discount", 8.0)
  ]  # fmt: skip


def test_a_run_without_beliefs_or_groups_has_no_such_sections(tmp_path):
  run = _run(tmp_path / "run")
  assert model_diagnostics.predictions(run) is None
  assert model_diagnostics.length_scales(run) is None
  assert groups.groups(run) == []
  page = reports.render([run], {}, {})
  assert "controller believed" not in page and "migrants" not in page


def test_the_page_says_what_was_believed(run):
  page = reports.render([run], {}, {})
  assert ">What the controller believed<" in page
  assert '<th scope="row">policy_learning_rate</th><td>1</td>' in page
  tree = schedules.tree(run)
  (children,) = [x for x in tree["data"] if x["name"] == "child"]
  assert "predicted change of fitness: 1.0 ± 0.5" in children["text"][0]


def test_groups_are_told_with_their_migrants(migrating):
  found = groups.groups(migrating)
  assert [group.title for group in found] == [
    "every 1, members 0 to 0",
    "every 2, members 1 to 1",
    "every 6, members 2 to 2",
  ]
  assert groups.migrations(migrating, found) == [
    [0, 0, 1], [0, 0, 0], [0, 0, 0]
  ]  # fmt: skip
  assert groups.best_returns(migrating, found[1]) == [
    (100, 2.0), (200, 2.5), (300, 1.0), (400, 9.0)
  ]  # fmt: skip


def test_migrants_have_a_mark_and_groups_a_line_between_them(migrating):
  tree = schedules.tree(migrating)
  (mark,) = [x for x in tree["data"] if x["name"].startswith("migrant")]
  assert (mark["x"], mark["y"]) == ([3], [0])
  assert [x["y0"] for x in tree["layout"]["shapes"]] == [0.5, 1.5]
  page = reports.render([migrating], {}, {})
  assert ">Groups and migrations<" in page
  assert (
    '<th scope="row">every 1, members 0 to 0</th><td>0</td><td>0</td><td>1</td>'
    in page
  )


def test_a_choice_is_shown_by_its_values_names(tmp_path):
  ranges = {"discount": {"kind": "Choice", "values": [0.9, 0.99, 0.999]}}
  run = _run(tmp_path / "run", ranges=ranges)
  found = schedules.hyperparameters(run)
  (note,) = [
    x for x in found["layout"]["annotations"] if x["text"] == "discount"
  ]
  suffix = note["yref"].removesuffix(" domain").removeprefix("y")
  axis = found["layout"][f"yaxis{suffix}"]
  assert axis["ticktext"] == ["0.9", "0.99", "0.999"]
  assert axis["tickvals"] == [0, 1, 2]
  everyone, winner = [
    x for x in found["data"] if x["yaxis"] == f"y{suffix}"
  ]
  assert winner["y"] == [2, 2, 2, 2] and winner["text"] == ["0.999"] * 4
  assert everyone["y"][:4] == [0, 0, 2, 2]


def test_plotly_knows_all_that_it_is_told(run, migrating, tmp_path):
  from plotly import graph_objects

  ranges = {"discount": {"kind": "Choice", "values": [0.9, 0.99, 0.999]}}
  chosen = _run(tmp_path / "run", ranges=ranges)
  for found in (
    model_diagnostics.predictions(run),
    model_diagnostics.length_scales(run),
    schedules.tree(migrating),
    schedules.hyperparameters(chosen),
  ):
    graph_objects.Figure(json.loads(json.dumps(found)))
