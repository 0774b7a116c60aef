"""Tests of the launcher that writes reports, but for what browsers show."""

import importlib.util
import json
import re

import pytest

from qdrl_haiku import learners, map_elites
from qdrl_haiku.storage.directory import RunDirectory
from tests import configs
from tests.launchers import harness, untrained
from tests.reports import common

_GRID = map_elites.Grid((3, 2), (-1.0, -1.0), (1.0, 1.0))


def _report(capsys, tmp_path, *logdirs, flags=()):
  """What the launcher did, and the page that it wrote."""
  output = tmp_path / "page.html"
  outcome = harness.run(
    capsys,
    "report",
    *(f"--logdir={logdir}" for logdir in logdirs),
    f"--output={output}",
    *flags,
  )
  return outcome, output.read_text() if outcome.code == 0 else None


def _repertoires(page):
  """The data of the repertoires in a page."""
  texts = re.findall(r'<script type="application/json">(.*?)</script>', page)
  return [x for x in map(json.loads, texts) if "cells" in x]


def _write_agents(path, agent, **settings):
  """A run with two agents in its repertoire."""
  RunDirectory(path).begin(settings)
  common.agents(agent, _GRID, [0, 1]).save(path / "repertoire" / "7.npz")


def _lengths(repertoire):
  """How many points the way of each elite has."""
  return [len(paths[0][0]) for *_, paths in repertoire["rollouts"]["episodes"]]


def test_several_runs_are_on_one_page_that_says_where_it_is(capsys, tmp_path):
  for i in range(2):
    common.write_population(tmp_path / f"run{i}", seed=i)
  logdirs = [tmp_path / "run0", tmp_path / "run1"]
  outcome, page = _report(capsys, tmp_path, *logdirs)
  assert outcome.err == ""
  assert outcome.out.startswith(f"wrote {tmp_path}/page.html (")
  assert "run0" in page and "run1" in page and "Comparison" in page


@pytest.mark.slow
def test_elites_of_each_run_act_as_that_run_had_them(capsys, tmp_path):
  _write_agents(
    tmp_path / "first",
    learners.td3(
      2,
      2,
      configs.sized(
        learners.TD3Config, (4,), (4,), normalize_observations=False
      ),
    ),
    env_name="point_maze", learner="td3", hidden_layer_sizes=["4"],
    episode_length=9, normalize_observations=False,
  )  # fmt: skip
  # What isn't said is as flags have it by default.
  _write_agents(
    tmp_path / "second",
    learners.sac(
      2, 2, configs.sized(learners.SACConfig, (5,), (5,))
    ),
    env_name="point_maze", hidden_layer_sizes=["5"],
  )  # fmt: skip
  with untrained.quick_compilation():
    outcome, page = _report(
      capsys, tmp_path, tmp_path / "first", tmp_path / "second"
    )
  assert outcome.err == ""
  first, second = _repertoires(page)
  assert (_lengths(first), _lengths(second)) == ([10, 10], [100, 100])


def test_without_rollouts_no_agent_is_made(capsys, tmp_path):
  directory = common.write_population(tmp_path / "run", env_name="gone:gone")
  common.write_repertoire(directory, common.repertoire(_GRID))
  outcome, page = _report(
    capsys, tmp_path, directory.path, flags=["--rollouts=0"]
  )
  assert outcome.err == ""
  (shown,) = _repertoires(page)
  assert "rollouts" not in shown


@pytest.mark.parametrize("has_members", [True, False])
def test_hyperparameters_of_elites_are_shown_where_agents_train(
  has_members, capsys, tmp_path
):
  directory = common.write_population(tmp_path / "run")
  if not has_members:
    (directory.path / "pbt_members.jsonl").unlink()
  common.write_repertoire(directory, common.repertoire(_GRID))
  _, page = _report(capsys, tmp_path, directory.path, flags=["--rollouts=0"])
  (shown,) = _repertoires(page)
  names = {column["name"] for column in shown["columns"]}
  expected = {"discount", "policy_learning_rate"} if has_members else set()
  assert names - {"episode return", "a", "b"} == expected


def test_agents_that_cannot_be_made_again_are_shown_without(capsys, tmp_path):
  directory = common.write_population(tmp_path / "run", env_name="gone:gone")
  common.write_repertoire(directory, common.repertoire(_GRID))
  outcome, page = _report(capsys, tmp_path, directory.path)
  assert outcome.err.startswith("warning: no rollouts of run: 'gone:gone'")
  assert outcome.err.count("\n") == 1
  assert len(_repertoires(page)) == 1


def test_a_damaged_repertoire_is_reported_in_a_line(capsys, tmp_path):
  directory = common.write_population(tmp_path / "run")
  path = common.write_repertoire(directory, common.repertoire(_GRID))
  path.write_bytes(path.read_bytes()[:-50])
  outcome, page = _report(capsys, tmp_path, directory.path)
  assert outcome.err.startswith(f"warning: {path} can't be read")
  assert outcome.err.count("\n") == 1
  assert _repertoires(page) == []


@pytest.mark.parametrize(
  ("arguments", "message"),
  [
    ([], "--logdir is missing: which runs"),
    (["--logdir=nowhere"], "nowhere holds no run"),
    (["--logdir=run", "--logdir=./run"], "run is given twice"),
    (["--logdir=run", "--rollouts=-1"], "rollouts must be at least 0, got -1"),
    (["--logdir=run", "--output=mine"], "--output=mine is there; name a new"),
    (["--logdir=run", "--output=none/x.html"], "there is no directory none"),
    (["--logdir=damaged"], "metrics.jsonl is damaged in line 1"),
    (["--logdir=skills"], "skills.npz is damaged"),
    (["--logdir=run", "--without_plotly"], "pip install plotly"),
  ],
)
def test_what_cannot_be_reported_is_refused(
  arguments, message, capsys, tmp_path, monkeypatch
):
  monkeypatch.chdir(tmp_path)
  common.write_population("run")
  directory = common.write_population("damaged")
  text = (directory.path / "metrics.jsonl").read_text()
  (directory.path / "metrics.jsonl").write_text("{" + text)
  directory = common.write_population("skills")
  (directory.path / "skills.npz").write_text("nothing")
  (tmp_path / "mine").touch()
  if "--without_plotly" in arguments:
    arguments = arguments[:-1]
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
      "importlib.util.find_spec",
      lambda name, *rest: None if name == "plotly" else find_spec(name, *rest),
    )
  before = sorted(tmp_path.rglob("*"))
  outcome = harness.run(capsys, "report", *arguments)
  assert outcome.code == 2 and outcome.err.count("\n") == 1
  assert message in outcome.err
  assert sorted(tmp_path.rglob("*")) == before
