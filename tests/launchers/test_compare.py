"""Tests of the launcher that compares, mostly without training anything."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from matplotlib import figure

from qdrl_haiku import comparisons
from qdrl_haiku.cli import subprocesses
from qdrl_haiku.storage.directory import RunDirectory
from tests.launchers import harness, users_module
from tests.reports import common

_TABLE = [
  "--command=train_pbt --learner=sac",
  "--task=maze: --env_name=point_maze",
  "--method=pbt:",
  "--method=pb2: --controller=pb2",
  "--num_seeds=2",
]


@pytest.fixture
def started(monkeypatch):
  """What is started, each with its flags; a run is a few rows."""
  commands = []

  def run(self, launcher, flags, log):
    commands.append((launcher, *flags))
    given = dict(flag[2:].partition("=")[::2] for flag in flags)
    if "dry_run" in given and given.get("controller") == "none":
      return subprocesses.Done(2, "error: --controller=none is unknown.")
    if "dry_run" not in given and "resume" not in given:
      if given.get("controller") == "broken":
        return subprocesses.Done(1, "error: the disk is full")
      common.write_population(
        given["logdir"], scale=1 + float(given["seed"]), seed=given["seed"]
      )
    if given.get("controller") == "diverging" and "dry_run" not in given:
      return subprocesses.Done(3, "error: all members have diverged")
    self.is_interrupted = given.get("controller") == "interrupted"
    return subprocesses.Done(0, "")

  monkeypatch.setattr(subprocesses.Processes, "run", run)
  # To draw it takes longer than all else.
  monkeypatch.setattr(comparisons, "picture", lambda *_: figure.Figure())
  return commands


def _compare(capsys, tmp_path, *flags):
  return harness.run(
    capsys, "compare", *_TABLE, f"--output={tmp_path / 'out'}", *flags
  )


def _trained(commands):
  return [x for x in commands if "--dry_run" not in x]


def test_runs_are_trained_and_compared(capsys, tmp_path, started):
  outcome = _compare(capsys, tmp_path, "--at_steps=100")
  assert outcome.code == 0, outcome.err
  out = tmp_path / "out"
  # One of each command is checked before anything is trained.
  assert ["--dry_run" in x for x in started] == [True] * 2 + [False] * 4
  assert started[2] == (
    "train_pbt", "--learner=sac", "--env_name=point_maze", "--seed=0",
    f"--logdir={out}/maze/pbt/seed_0",
  )  # fmt: skip
  rows = [json.loads(x) for x in (out / "table.jsonl").read_text().splitlines()]
  assert [row["method"] for row in rows] == ["pbt", "pb2"]
  # The last three of the best are 6, 7, 9, and twice that.
  assert rows[0]["final"] == pytest.approx(11.0)
  assert rows[0]["at_100"] == pytest.approx(4.5)
  assert rows[1]["improvement"] == 0.5
  seeds = (out / "scores.jsonl").read_text().splitlines()
  assert [json.loads(x)["seed"] for x in seeds] == [0, 0, 1, 1]
  assert "| pb2 | 2 |" in (out / "table.md").read_text()
  assert (out / "comparison.png").exists()


def test_what_is_done_is_not_done_again(capsys, tmp_path, started):
  assert _compare(capsys, tmp_path).code == 0
  started.clear()
  outcome = _compare(capsys, tmp_path, "--method=slow: --explore=mixed")
  assert outcome.code == 0, outcome.err
  assert [x[-1].split("/maze/")[1] for x in _trained(started)] == [
    "slow/seed_0", "slow/seed_1"
  ]  # fmt: skip


def test_what_had_begun_is_resumed(capsys, tmp_path, started):
  logdir = tmp_path / "out" / "maze" / "pbt" / "seed_0"
  assert _compare(capsys, tmp_path).code == 0
  path = tmp_path / "out" / "runs.json"
  runs = json.loads(path.read_text())
  runs["maze/pbt/seed_0"]["done"] = False
  path.write_text(json.dumps(runs))
  started.clear()
  assert _compare(capsys, tmp_path).code == 0
  assert started == [("train_pbt", f"--logdir={logdir}", "--resume")]


def test_a_run_that_fails_does_not_stop_the_others(capsys, tmp_path, started):
  outcome = _compare(capsys, tmp_path, "--method=x: --controller=broken")
  assert outcome.code == 1
  assert "failed: maze/x/seed_0: error: the disk is full" in outcome.err
  assert "2 of 6 runs failed: maze/x/seed_0, maze/x/seed_1" in outcome.err
  assert "| pb2 | 2 |" in (tmp_path / "out" / "table.md").read_text()


def test_a_run_that_diverged_is_done_and_counts(capsys, tmp_path, started):
  flags = ("--method=x: --controller=diverging",)
  outcome = _compare(capsys, tmp_path, *flags)
  assert outcome.code == 0
  assert "diverged: maze/x/seed_1: error: all members have" in outcome.err
  assert "| x | 2 |" in (tmp_path / "out" / "table.md").read_text()
  started.clear()
  assert _compare(capsys, tmp_path, *flags).code == 0
  assert not _trained(started)


def test_an_interruption_ends_it_with_the_code_of_runs(
  capsys, tmp_path, started
):
  outcome = _compare(
    capsys, tmp_path, "--method=x: --controller=interrupted", "--num_seeds=1"
  )
  assert outcome.code == 75
  assert len(_trained(started)) == 0


@pytest.mark.parametrize(
  ("flags", "message"),
  [
    (["--output="], "--output is missing"),
    (["--baseline=pb"], "--baseline=pb is no method; did you mean"),
    (["--num_last=0"], "num_last must be at least 1, got 0"),
    (["--at_steps=soon"], "--at_steps=soon is no list of integers"),
    (["--num_seeds=ant:2"], "num_seeds=ant:2: there is no task 'ant'"),
    (
      ["--method=x: --controller=none"],
      "task maze, method x: --controller=none is unknown.",
    ),
  ],
)
def test_what_makes_no_sense_ends_it_before_anything_is_trained(
  capsys, tmp_path, started, flags, message
):
  outcome = _compare(capsys, tmp_path, *flags)
  assert outcome.code == 2
  assert message in outcome.err
  assert not _trained(started)


def test_a_command_that_was_refused_may_be_corrected(
  capsys, tmp_path, started
):
  assert _compare(capsys, tmp_path, "--method=x: --controller=none").code == 2
  outcome = _compare(capsys, tmp_path, "--method=x: --controller=pb2")
  assert outcome.code == 0
  assert "| x | 2 |" in (tmp_path / "out" / "table.md").read_text()


def test_another_commands_runs_are_not_taken_for_its_own(
  capsys, tmp_path, started
):
  assert _compare(capsys, tmp_path).code == 0
  outcome = _compare(capsys, tmp_path, "--command=train_pbt --learner=td3")
  assert outcome.code == 2
  assert "has a run maze/pbt/seed_0 by another command, 'train_pbt" in (
    outcome.err
  )
  (tmp_path / "out" / "runs.json").write_text("[]")
  assert "runs.json is damaged" in _compare(capsys, tmp_path).err
  (tmp_path / "out" / "runs.json").unlink()
  assert "holds something, but no comparison" in (
    _compare(capsys, tmp_path).err
  )


@pytest.mark.parametrize(("preset", "num_runs"), [
  ("compare_maze", 4),
  *(
    pytest.param(*case, marks=pytest.mark.slow)
    for case in (
      ("compare_controllers", 52),
      ("compare_emitters", 36),
      ("compare_emitters_maze", 15),
      ("compare_learners", 42),
      ("compare_physics", 16),
    )
  ),
])  # fmt: skip
def test_presets_are_tables(
  capsys, tmp_path, monkeypatch, started, preset, num_runs
):
  monkeypatch.setattr(comparisons, "read", lambda *_: [])
  outcome = harness.run(
    capsys, "compare", f"--preset={preset}", f"--output={tmp_path / 'out'}"
  )
  assert outcome.code == 0, outcome.err
  assert len(_trained(started)) == num_runs


def test_launchers_are_started_as_this_one_was(monkeypatch):
  monkeypatch.setattr(sys, "argv", ["launchers/compare.py"])
  assert subprocesses.sibling("train_pbt") == "launchers/train_pbt.py"
  monkeypatch.setattr(sys, "argv", ["/usr/bin/qdrl-compare"])
  assert subprocesses.sibling("train_me_pbt") == "/usr/bin/qdrl-train-me-pbt"


def test_a_launchers_last_words_are_its_message(tmp_path, monkeypatch):
  program = tmp_path / "train.py"
  program.write_text(
    "import sys\nprint('out')\n"
    "print('warning\\nerror: no', file=sys.stderr)\nsys.exit(3)\n"
  )
  monkeypatch.setattr(sys, "argv", [str(tmp_path / "compare.py")])
  with subprocesses.forwarded_signals() as process:
    done = process.run("train", [], tmp_path / "log")
  assert done == (3, "error: no")
  assert "warning" in (tmp_path / "log").read_text()
  assert "out" in (tmp_path / "log").read_text()


def test_a_signal_reaches_the_launcher_that_runs(tmp_path, monkeypatch):
  (tmp_path / "train.py").write_text(
    "import os, signal, sys, time\n"
    "signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))\n"
    "os.kill(os.getppid(), signal.SIGTERM)\ntime.sleep(60)\n"
  )
  monkeypatch.setattr(sys, "argv", [str(tmp_path / "compare.py")])
  with subprocesses.forwarded_signals() as process:
    done = process.run("train", [], tmp_path / "log")
    assert (done.code, process.is_interrupted) == (75, True)
    # Nothing is started after that.
    assert process.run("train", [], tmp_path / "log").code == 1
  assert signal.getsignal(signal.SIGTERM) != process.stop


@pytest.mark.slow
def test_a_comparison_that_is_stopped_goes_on_where_it_was(tmp_path):
  out = tmp_path / "out"
  users_module.write(tmp_path)
  flags = [
    "train_pbt", *users_module.FLAGS, "--population_size=2",
    "--num_timesteps=160", "--perturbation_interval=40",
    "--nouse_tensorboard", "--checkpoint_interval=1",
    "--search_space=speed:uniform:0.001:0.1",
  ]  # fmt: skip
  command = [
    sys.executable, str(harness.LAUNCHERS / "compare.py"), "--task=line:",
    f"--command={' '.join(flags)}", "--method=pbt:", "--num_seeds=1",
    f"--output={out}",
  ]  # fmt: skip
  env = os.environ | {"JAX_NUM_CPU_DEVICES": "1"}
  with subprocess.Popen(command, env=env, cwd=tmp_path) as process:
    first = out / "line" / "pbt" / "seed_0"
    deadline = time.monotonic() + 300
    while not (first / "checkpoints" / "40").exists():
      assert time.monotonic() < deadline and process.poll() is None
      time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
  assert process.returncode == 75
  done = subprocess.run(
    command, env=env, cwd=tmp_path, capture_output=True, text=True
  )
  assert done.returncode == 0, done.stderr
  rows = RunDirectory(first).rows("metrics.jsonl")
  assert [row["step"] for row in rows] == [40, 80, 120, 160]
  assert "| pbt | 1 |" in (out / "table.md").read_text()
  assert (out / "comparison.png").stat().st_size > 1000
