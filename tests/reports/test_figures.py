"""Tests of the figures of a run: what is drawn, and that plotly can."""

import pytest

from qdrl_haiku import reports
from qdrl_haiku.reports import ancestry, curves, figure, schedules
from tests.reports import common


@pytest.fixture(scope="module")
def run(tmp_path_factory):
  """Of three members, of which two were replaced in time."""
  path = tmp_path_factory.mktemp("logs") / "run"
  common.write_population(path)
  return reports.read_runs([str(path)])[0]


def _trace(found, name):
  (trace,) = [x for x in found["data"] if x["name"].startswith(name)]
  return trace


def _panel(found, title):
  """The traces and the vertical axis of the small plot of a title."""
  layout = found["layout"]
  (note,) = [x for x in layout["annotations"] if x["text"] == title]
  suffix = note["xref"].removesuffix(" domain").removeprefix("x")
  traces = [x for x in found["data"] if x["xaxis"] == f"x{suffix}"]
  return traces, layout[f"yaxis{suffix}"]


def _cut(trace):
  """The pieces of a broken line."""
  pieces, piece = [], []
  for point in [*zip(trace["x"], trace["y"], strict=True), (None, None)]:
    if point[0] is not None:
      piece.append(point)
    elif piece:
      pieces.append(piece)
      piece = []
  return pieces


def test_the_winner_is_traced_back_through_its_parents(run):
  won = ancestry.winner(run)
  assert won.member == 1
  assert won.ancestors == common.ANCESTORS
  assert [row["return"] for row in won.rows] == [3, 6, 5, 9]


def test_ancestry_begins_where_an_elite_became_a_member(run):
  rows = [row for row in run.lineage if row["generation"] != 2]
  sample = {"generation": 2, "step": 200, "child": 0, "parent": -1, "cell": 5}
  sample |= {"operator": "sample", "new_hyperparams": {"tau": 0.1}}
  won = ancestry.winner(run._replace(lineage=[*rows, sample]))
  assert won.ancestors == {3: 0, 4: 1}


def test_what_follows_the_last_evaluation_is_no_ancestry(run):
  """Where winners may be replaced too."""
  row = {"generation": 4, "step": 400, "child": 1, "parent": 2}
  row |= {"operator": "perturb", "new_hyperparams": {"tau": 0.1}}
  won = ancestry.winner(run._replace(lineage=[*run.lineage, row]))
  assert won.ancestors == common.ANCESTORS


def test_a_winner_without_lineage_is_its_own_ancestor(run):
  assert ancestry.winner(run._replace(lineage=[])).ancestors == {4: 1}


def test_a_member_that_diverged_does_not_win(run):
  rows = [
    row | {"return": None} if row["member"] == 1 else row
    for row in run.members
  ]
  assert ancestry.winner(run._replace(members=rows)).member == 0
  gone = [row | {"return": None} for row in rows]
  assert ancestry.winner(run._replace(members=gone)) is None


def test_a_childs_curve_leaves_its_parents(run):
  found = curves.learning_curves(run)
  assert _cut(_trace(found, "members")) == [
    [(100, 1), (200, 4)],
    [(200, 6), (300, 5), (400, 8)],
    [(100, 2), (200, 2.5), (300, 1)],
    [(300, 5), (400, 9)],
    [(100, 3), (200, 6), (300, 7), (400, 2)],
    # After the last evaluation there is nothing yet but the parent.
    [(400, 9)],
  ]
  assert _trace(found, "best")["y"] == [3, 6, 7, 9]
  assert _trace(found, "ancestry")["y"] == [3, 6, 5, 9]
  layout = found["layout"]
  assert layout["xaxis"]["title"]["text"] == "environment steps per agent"
  assert layout["yaxis"]["title"]["text"] == "episode return"


def test_seeds_have_their_curves_and_what_they_have_in_common(tmp_path):
  common.write_seeds(tmp_path / "run", 3)
  (run,) = reports.read_runs([str(tmp_path / "run")])
  found = curves.learning_curves(run)
  assert _trace(found, "seed 2")["y"] == [102, 202, 302]
  *_, interval, mean = found["data"]
  assert mean["y"] == [101, 201, 301]
  assert interval["y"] == [102, 202, 302, 300, 200, 100]


def test_schedules_are_of_what_changed_and_logarithmic_as_searched(run):
  found = schedules.hyperparameters(run)
  assert len(found["layout"]["annotations"]) == 2
  (everyone, winner), axis = _panel(found, "policy learning rate")
  assert axis["type"] == "log"
  assert winner["y"] == [0.01] * 4
  assert _cut(everyone)[0] == [
    (100, 1e-4), (200, 1e-4), (300, 1e-2), (400, 1e-2)
  ]  # fmt: skip
  (_, winner), axis = _panel(found, "1 - discount")
  assert axis["type"] == "log"
  assert winner["y"] == pytest.approx([0.001] * 4, rel=1e-3)
  assert list(schedules.constants(run)) == ["tau"]


def test_what_was_searched_evenly_has_an_even_axis(run):
  settings = {"search_space": ["discount:uniform:0.8:0.9999"]}
  found = schedules.hyperparameters(
    run._replace(settings=run.settings | settings)
  )
  _, axis = _panel(found, "discount")
  assert "type" not in axis
  # A learner of one's own may have anything in its settings.
  strange = run._replace(settings={"search_space": [3], "tau": "x"})
  _, axis = _panel(schedules.hyperparameters(strange), "discount")
  assert "type" not in axis


def test_the_ranges_that_a_run_wrote_down_count_and_not_todays(run):
  def axis(title, **ranges):
    named = {
      name: {"kind": kind, "low": 0.1, "high": 0.9}
      for name, kind in ranges.items()
    }
    settings = run.settings | {"ranges": named}
    found = schedules.hyperparameters(run._replace(settings=settings))
    return _panel(found, title)[1].get("type")

  assert axis("1 - discount", discount="OneMinusLogUniform") == "log"
  # By today's defaults these would be logarithmic.
  assert axis("discount", discount="Uniform") is None
  assert axis("discount", tau="Fixed") is None
  assert axis("policy learning rate", policy_learning_rate="Uniform") is None
  assert axis("discount", discount="LogUniform") == "log"


def test_ticks_of_a_logarithmic_axis_are_whole_numbers():
  curve = figure.line([0, 1], [2e-4, 3e-3], "x", "")
  panel = figure.Panel("x", [curve], is_log=True)
  axis = figure.panels([panel], "")["layout"]["yaxis"]
  assert {"0.0005", "0.001", "0.002"} <= set(axis["ticktext"])


def test_the_tree_has_a_line_from_each_parent_to_its_child(run):
  found = schedules.tree(run)
  assert _cut(_trace(found, "takes over")) == [
    [(2, 2), (3, 0)], [(3, 0), (4, 1)]
  ]  # fmt: skip
  assert _cut(_trace(found, "goes on")) == [
    [(0, 0), (2, 0)],
    [(3, 0), (4, 0)],
    [(0, 1), (3, 1)],
    [(4, 1), (4, 1)],
    [(0, 2), (4, 2)],
  ]
  assert _cut(_trace(found, "ancestry")) == [
    [(0, 2), (1, 2), (2, 2), (3, 0), (4, 1)]
  ]
  mark = _trace(found, "child")
  assert list(zip(mark["x"], mark["y"], strict=True)) == [(3, 0), (4, 1)]
  assert "policy_learning_rate: 0.0001 → 0.01" in mark["text"][0]
  axes = [found["layout"][f"{x}axis"]["title"]["text"] for x in "xy"]
  assert axes == ["generation", "member"]


def test_elites_that_became_members_are_marked(run):
  sample = {"generation": 1, "step": 100, "child": 1, "parent": -1, "cell": 5}
  sample |= {"operator": "sample", "new_hyperparams": {"tau": 0.1}}
  found = schedules.tree(run._replace(lineage=[*run.lineage, sample]))
  mark = _trace(found, "elite of the repertoire")
  assert (mark["x"], mark["y"]) == ([2], [1])
  assert "member 1 from cell 5, after generation 1" in mark["text"][0]
  assert [(1, 1)] not in _cut(_trace(found, "takes over"))


def test_each_metric_has_a_plot_but_times_that_never_change(run):
  found = curves.metric_panels(run, "training/")
  (note,) = found["layout"]["annotations"]
  assert note["text"] == "critic loss"
  assert curves.metric_panels(run, "qd/") is None


def test_what_is_no_finite_number_is_left_out():
  values = [1, 2.0000001, float("nan"), float("-inf"), None, "3", True]
  assert figure.numbers(values) == [1, 2, None, None, None, None, 1]


def test_long_episodes_become_short_lines():
  steps = figure.decimated(1001)
  assert len(steps) == 100
  assert (steps[0], steps[-1]) == (0, 1000)
  assert figure.decimated(3).tolist() == [0, 1, 2]


def test_plotly_knows_all_that_it_is_told(run):
  from plotly import graph_objects

  for found in (
    curves.learning_curves(run),
    schedules.hyperparameters(run),
    schedules.tree(run),
    curves.metric_panels(run, "training/"),
  ):
    graph_objects.Figure(found)
