"""Tests of the launcher that compares, mostly without training anything."""

import json
import math
import re
import signal
import sys

import pytest
from matplotlib import figure

from qdrl_haiku import config
from qdrl_haiku.programs import experiment
from qdrl_haiku.programs.cli import compare, devices
from qdrl_haiku.programs.comparisons import rendering, scores
from tests.launchers import harness
from tests.programs.reports import common

_TABLE = [
  "--command=train_pbt --learner=sac", "--task=maze: --env_name=point_maze",
  "--method=pbt:", "--method=pb2: --controller=pb2", "--num_seeds=2"]


@pytest.fixture
def started(monkeypatch):
  """What is started, each with its flags; a run is a few rows."""
  commands = []

  def run(self, launcher, flags, log):
    commands.append((launcher, *flags))
    given = dict(flag[2:].partition("=")[::2] for flag in flags)
    if "dry_run" in given and given.get("controller") == "none":
      return compare.Done(2, "error: --controller=none is unknown.")
    if "dry_run" in given and given.get("controller") == "short":
      return compare.Done(0, "", ("nothing will be learned.",))
    if "dry_run" not in given and "resume" not in given:
      if given.get("controller") == "broken":
        return compare.Done(1, "error: the disk is full")
      is_finite = given.get("controller") != "diverging"
      common.write_population(
        given["logdir"], seed=given["seed"],
        scale=1 + float(given["seed"]) if is_finite else math.nan)
    if given.get("controller") == "diverging" and "dry_run" not in given:
      return compare.Done(3, "error: all members have diverged")
    self.is_interrupted = given.get("controller") == "interrupted"
    return compare.Done(0, "")

  monkeypatch.setattr(compare.Processes, "run", run)
  # To draw it takes longer than all else.
  name = "render_comparison_picture"
  monkeypatch.setattr(rendering, name, lambda *_: figure.Figure())
  return commands


def _compare(capsys, tmp_path, *flags):
  return harness.run(
    capsys, "compare", *_TABLE, f"--output={tmp_path / 'out'}", *flags)


def _trained(commands):
  return [x for x in commands if "--dry_run" not in x]


def test_runs_are_trained_and_compared(capsys, tmp_path, started):
  outcome = _compare(
    capsys, tmp_path, "--at_steps=100", "--at_minutes=0.5,1", "--picture=svg")
  assert outcome.code == 0, outcome.err
  out = tmp_path / "out"
  # One of each command is checked before anything is trained.
  assert ["--dry_run" in x for x in started] == [True] * 2 + [False] * 4
  assert started[2] == (
    "train_pbt", "--learner=sac", "--env_name=point_maze", "--seed=0",
    f"--logdir={out}/maze/pbt/seed_0")
  rows = [json.loads(x) for x in (out / "table.jsonl").read_text().splitlines()]
  assert [row["method"] for row in rows] == ["pbt", "pb2"]
  # The last three of the best are 6, 7, 9, and twice that.
  assert rows[0]["final"] == pytest.approx(11.0)
  assert rows[0]["at_100"] == pytest.approx(4.5)
  assert rows[1]["improvement"] == 0.5
  seeds = (out / "scores.jsonl").read_text().splitlines()
  assert [json.loads(x)["seed"] for x in seeds] == [0, 0, 1, 1]
  text = (out / "table.md").read_text()
  assert "| at 100 | after 0.5 minutes | after 1 minutes |" in text
  assert "| pb2 | 2 |" in text
  assert "<svg" in (out / "comparison.svg").read_text()


@pytest.mark.parametrize(("controller", "code", "said", "row"), [
  ("short", 0, "^warning: task maze, method x: nothing will be learned.\n$",
   "x | 2"),
  # The others go on.
  ("broken", 1, "failed: maze/x/seed_0: error: the disk is full(.|\n)*"
   "2 of 6 runs failed: maze/x/seed_0, maze/x/seed_1", "pb2 | 2"),
  # It is done, and counts.
  ("diverging", 0, "diverged: maze/x/seed_1: error: all members", "x | 2")])
def test_what_comes_of_a_method_is_said(
  controller, code, said, row, capsys, tmp_path, started
):
  flag = f"--method=x: --controller={controller}"
  outcome = _compare(capsys, tmp_path, flag)
  assert outcome.code == code and re.search(said, outcome.err)
  assert f"| {row} |" in (tmp_path / "out" / "table.md").read_text()
  started.clear()
  assert _compare(capsys, tmp_path, flag).code == code
  assert len(_trained(started)) == 2 * code


def test_what_is_done_is_not_done_again(capsys, tmp_path, started):
  assert _compare(capsys, tmp_path).code == 0
  started.clear()
  outcome = _compare(capsys, tmp_path, "--method=slow: --explore=mixed")
  assert outcome.code == 0, outcome.err
  assert [x[-1].split("/maze/")[1] for x in _trained(started)] == [
    "slow/seed_0", "slow/seed_1"]

  # And what had begun is resumed.
  logdir = tmp_path / "out" / "maze" / "pbt" / "seed_0"
  path = tmp_path / "out" / "runs.json"
  runs = json.loads(path.read_text())
  runs["maze/pbt/seed_0"]["done"] = False
  path.write_text(json.dumps(runs))
  started.clear()
  assert _compare(capsys, tmp_path).code == 0
  assert started == [("train_pbt", f"--logdir={logdir}", "--resume")]


@pytest.mark.parametrize(("flags", "message"), [
  (["--baseline=pb"], "--baseline=pb is no method; did you mean"),
  (["--method=x: --controller=none"],
   "task maze, method x: --controller=none is unknown.")])
def test_nonsense_is_refused(capsys, tmp_path, started, flags, message):
  outcome = _compare(capsys, tmp_path, *flags)
  harness.assert_refused(outcome, message)
  assert not _trained(started)


def test_another_commands_runs_are_refused(capsys, tmp_path, started):
  assert _compare(capsys, tmp_path).code == 0
  outcome = _compare(capsys, tmp_path, "--command=train_pbt --learner=td3")
  assert outcome.code == 2
  assert "has a run maze/pbt/seed_0 by another command, 'train_pbt" in (
    outcome.err)
  (tmp_path / "out" / "runs.json").write_text("[]")
  assert "runs.json is damaged" in _compare(capsys, tmp_path).err
  (tmp_path / "out" / "runs.json").unlink()
  assert "holds something, but no comparison" in (
    _compare(capsys, tmp_path).err)


def test_presets_are_tables(capsys, tmp_path, monkeypatch, started):
  monkeypatch.setattr(scores, "read_scored_curves", lambda *_: [])
  monkeypatch.setattr(common, "write_population", lambda *_, **__: None)
  folder = harness.LAUNCHERS / "flagfiles"
  presets = [path.stem for path in folder.glob("compare_*.flags")]
  assert len(presets) >= 6
  offered = {
    name: {x for x, y in program.settings().items() if y.declared.offered}
    for name, program in experiment.LAUNCHERS.items()}
  # Wherever a run is.
  process = config.config_tree_flags(devices.ProcessConfig()).keys()
  for preset in presets:
    started.clear()
    output = f"--output={tmp_path / preset}"
    outcome = harness.run(capsys, "compare", f"--preset={preset}", output)
    assert outcome.code == 0, outcome.err
    assert len(_trained(started)) >= 4
    for program, *flags in started:
      names = {flag[2:].partition("=")[0] for flag in flags}
      assert all(
        (offered[program] | process) & {x, x.removeprefix("no")} for x in names
      ), preset


def test_a_signal_reaches_the_launcher_that_runs(tmp_path, monkeypatch):
  (tmp_path / "train.py").write_text(
    "import os, signal, sys, time\nprint('out', flush=True)\n"
    "def stop(*_):\n"
    "  print('W1128 1:2 x.py:3] warning\\nerror: no', file=sys.stderr)\n"
    "  sys.exit(75)\n"
    "signal.signal(signal.SIGTERM, stop)\n"
    "os.kill(os.getppid(), signal.SIGTERM)\ntime.sleep(60)\n")
  monkeypatch.setattr(sys, "argv", [str(tmp_path / "compare.py")])
  before = signal.getsignal(signal.SIGTERM)
  with compare.Processes() as process:
    done = process.run("train", [], tmp_path / "log")
    # The last words are the message.
    assert done == (75, "error: no", ("warning",))
    assert process.is_interrupted
    lines = (tmp_path / "log").read_text().splitlines()
    assert {"out", "W1128 1:2 x.py:3] warning"} < {*lines}
    # Nothing is started after that.
    assert process.run("train", [], tmp_path / "log").code == 1
  assert signal.getsignal(signal.SIGTERM) == before
