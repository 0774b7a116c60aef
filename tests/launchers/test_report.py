"""Tests of the launcher that writes reports, but for what browsers show."""

import importlib.util
import json
import re
import time

import pytest

from tests import planes
from tests.launchers import harness
from tests.programs.reports import common


def _report(capsys, tmp_path, *logdirs, flags=()):
  """What the launcher said, and the data of the repertoires in its page."""
  output = tmp_path / "page.html"
  logdirs = [f"--logdir={logdir}" for logdir in logdirs]
  outcome = harness.run(
    capsys, "report", *logdirs, f"--output={output}", *flags)
  assert outcome.code == 0, outcome.err
  assert outcome.out.startswith(f"wrote {tmp_path}/page.html (")
  texts = re.findall(
    r'<script type="application/json">(.*?)</script>', output.read_text())
  found = [x for x in map(json.loads, texts) if "cells" in x]
  return outcome.err, found


@pytest.mark.parametrize(
  "case", ["agents can't be made", "no rollouts", "no members", "damaged"])
def test_what_there_is_of_a_repertoire_is_shown(case, capsys, tmp_path):
  directory = common.write_population(tmp_path / "run", env_name="gone:gone")
  path = common.write_repertoire(directory, common.repertoire(planes.GRID))
  names, said = {"discount", "policy_learning_rate"}, ""
  flags = ["--rollouts=0"]
  if case == "agents can't be made":
    flags, said = [], "warning: no rollouts of run: 'gone:gone'"
  if case == "no members":
    (directory.path / "pbt_members.jsonl").unlink()
    names = set()
  if case == "damaged":
    path.write_bytes(path.read_bytes()[:-50])
    said = f"warning: {path} can't be read"
  err, found = _report(capsys, tmp_path, directory.path, flags=flags)
  assert err.startswith(said) and err.count("\n") == bool(said)
  if case == "damaged":
    assert found == []
    return
  (shown,) = found
  assert "rollouts" not in shown
  columns = {column["name"] for column in shown["columns"]}
  assert columns - {"episode return", "a", "b"} == names


@pytest.mark.parametrize(("arguments", "message"), [
  ([], "--logdir is missing: which runs"),
  (["--logdir=run", "--logdir=./run"], "run is given twice"),
  (["--logdir=run", "--output=mine"], "--output=mine is there; name a new"),
  (["--logdir=run"], "skills.npz is damaged"),
  (["--logdir=run", "--without_plotly"], r"pip install 'qdrl_haiku\[report]'")])
def test_what_cannot_be_reported_is_refused(
  arguments, message, capsys, tmp_path, monkeypatch
):
  monkeypatch.chdir(tmp_path)
  directory = common.write_population("run")
  (directory.path / "skills.npz").write_text("nothing")
  (tmp_path / "mine").touch()
  if "--without_plotly" in arguments:
    arguments = arguments[:-1]
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
  before = sorted(tmp_path.rglob("*"))
  outcome = harness.run(capsys, "report", *arguments)
  harness.assert_refused(outcome, message)
  assert sorted(tmp_path.rglob("*")) == before


def test_a_running_runs_page_is_written_anew_until_it_has_its_steps(
  capsys, tmp_path, monkeypatch
):
  """Both by the program and by the browser; without panels of zeros."""
  directory = common.write_population(tmp_path / "run")
  metrics = directory.path / "metrics.jsonl"
  rows = [json.loads(x) for x in metrics.read_text().splitlines()]
  config = json.loads((directory.path / "config.json").read_text())
  config["num_timesteps"] = rows[-1]["step"]
  (directory.path / "config.json").write_text(json.dumps(config))
  written, pages = [x | {"training/qd_zero": 0} for x in rows], []
  for row in written:
    row["training/qd_step"] = row["step"]

  def write(number):
    metrics.write_text("".join(json.dumps(x) + "\n" for x in written[:number]))

  def wait(seconds):
    assert seconds == 7
    pages.append((tmp_path / "page.html").read_text())
    write(len(pages) * len(rows) // 2)

  write(0)
  monkeypatch.setattr(time, "sleep", wait)
  _report(capsys, tmp_path, directory.path, flags=["--follow=7"])
  assert len(pages) == 2
  pages.append((tmp_path / "page.html").read_text())
  assert ['"refresh" content="7"' in x for x in pages] == [True, True, False]
  assert ["qd step" in x for x in pages] == [False, True, True]
  assert not any("qd zero" in x for x in pages)
