"""Tests of what a report tells of PB2's predictions and of MF-PBT's groups."""

import pytest

from qdrl_haiku import reports
from qdrl_haiku.reports import groups, member_figures, model_diagnostics
from tests.reports import common

# Of the children of generations 2, 3 and 4, see `common`.
_PREDICTIONS = {2: (1.0, 0.5), 3: (5.0, 2.0), 4: (None, None)}


def _run(path, **changes):
  common.write_population(path, **changes)
  return reports.read_runs([str(path)])[0]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
  """A run in which children were suggested, and changes were modelled."""
  run = _run(tmp_path_factory.mktemp("logs") / "run", controller="pb2")
  lineage = []
  for row in run.lineage:
    change, deviation = _PREDICTIONS.get(row["generation"], (None, None))
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
  """A run of three groups of one; a member migrated from the last one."""
  path = tmp_path_factory.mktemp("logs") / "run"
  run = _run(path, controller="mf_pbt", frequencies=["1", "2", "6"])
  lineage = [
    row | ({"operator": "migrated"} if row["generation"] == 2 else {})
    for row in run.lineage
  ]
  return run._replace(lineage=lineage)


def test_predicted_changes_are_drawn_against_observed_ones(run):
  line, bars, points = model_diagnostics.predictions(run).panels[0].traces
  # Member 0 took over from 2, which had 6, and came to 5; then 1 from 0, which
  # had 5, and came to 9.
  assert (points.x, points.y) == ([1.0, 5.0], [-1.0, 4.0])
  assert bars.x == (0.5, 1.5, None, 3.0, 7.0, None)
  assert bars.y == (-1, -1, None, 4, 4, None)
  assert line.x == line.y == [-1.0, 5.0]
  assert points.texts[0] == "member 0 of member 2, after generation 2"
  assert model_diagnostics.accuracy(run).startswith(
    "Of 2 predicted changes 1 had the predicted sign, and 1 were within one"
  )


def test_what_was_observed_is_of_fitness_where_that_is_not_the_return(run):
  members = [row | {"fitness": 10 * row["return"]} for row in run.members]
  figure = model_diagnostics.predictions(run._replace(members=members))
  assert figure.panels[0].traces[2].y == [44.0, 85.0]


def test_length_scales_are_drawn_from_when_changes_are_known(run):
  (panel,) = model_diagnostics.length_scales(run).panels
  discount, _ = panel.traces
  assert (discount.x, discount.y) == ([200, 300, 400], [4.0, 6.0, 8.0])
  assert panel.y.is_log
  assert model_diagnostics.ranking(run) == [
    ("policy_learning_rate", 1.0), ("discount", 8.0)
  ]  # fmt: skip


def test_the_page_has_what_the_controller_has(run, migrating, tmp_path):
  plain = reports.render([_run(tmp_path / "run")], {}, {})
  assert "controller believed" not in plain and "migrants" not in plain
  page = reports.render([run], {}, {})
  assert ">What the controller believed<" in page
  assert '<th scope="row">policy_learning_rate</th><td>1</td>' in page
  page = reports.render([migrating], {}, {})
  assert ">Groups and migrations<" in page
  assert (
    '<th scope="row">every 1, members 0 to 0</th><td>0</td><td>0</td><td>1</td>'
    in page
  )


def test_groups_are_told_with_their_migrants(migrating):
  assert groups.migrations(migrating) == [[0, 0, 1], [0, 0, 0], [0, 0, 0]]
  _, second, third = groups.best_returns(migrating).panels[0].traces
  assert third.name == "every 6, members 2 to 2"
  assert (second.x, second.y) == ([100, 200, 300, 400], [2.0, 2.5, 1.0, 9.0])


def test_children_are_marked_by_how_they_began(run, migrating):
  def marks(run, start):
    traces = member_figures.tree(run).panels[0].traces
    return [trace for trace in traces if trace.name.startswith(start)]

  (children,) = marks(run, "child")
  assert "predicted change of fitness: 1 ± 0.5" in children.texts[0]
  (migrant,) = marks(migrating, "migrant")
  assert (migrant.x, migrant.y) == ([3], [0])
  lines = marks(migrating, "between groups")
  assert [line.y for line in lines] == [[0.5, 0.5], [1.5, 1.5]]
