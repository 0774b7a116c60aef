"""Tests of command lines and files that make no sense: one line says which."""

import json
import os
import re
import shutil
import subprocess
import sys

import pytest

from qdrl_haiku import runs
from tests.launchers import harness, untrained

_RUN = (
  "--env_name=point_maze", "--episode_length=10", "--hidden_layer_sizes=4",
  "--num_envs=2", "--eval_interval=8", "--num_eval_episodes=2",
  "--nouse_tensorboard",
)  # fmt: skip


def _assert_refused(outcome, message):
  assert outcome.code == 2
  assert outcome.err.startswith("error: ") and outcome.err.count("\n") == 1
  assert "Traceback" not in outcome.out + outcome.err
  assert re.search(message, outcome.err), outcome.err


@pytest.mark.parametrize(("launcher", "flag", "message"), [
  ("train", "--num_envs=8.5", "--num_envs=8.5 .*; give an integer[.]"),
  ("train_pbt", "--tau=abc", "--tau=abc .*; give a number[.]"),
  ("train", "--use_tensorboard=maybe", "board=maybe .*; give true or false[.]"),
  ("train", "--nouse_tensorboard=1", "--nouse_tensorboard=1 .*; see --help"),
  ("train_pbt", "--num_env=4", "--num_env is no flag .*mean 'num_envs'"),
  ("train", "--qqqqq", "--qqqqq is no flag of this launcher; --help lists"),
  ("train", "extra", "'extra'; flags begin with --"),
  ("train", "--flagfile=/no/such/file", "flagfile.*/no/such/file.; see --h"),
  ("train", "--preset=quick", "preset=quick is unknown; did you mean 'quicks"),
  ("train", "--process_id=0", "--coordinator_address and --num_.* missing"),
  (
    "train",
    "--coordinator_address=host:1 --num_processes=2 --process_id=2",
    "--process_id=2 must be at least 0 and below --num_processes=2",
  ),
  (
    "train_pbt",
    "--coordinator_address=host --num_processes=2 --process_id=0",
    "--coordinator_address=host has no port; give it like 10.0.0.1:1234",
  ),
  # What a setting is called is what the program calls it.
  ("train", "--num_seeds=0", "error: num_seeds must be at least 1, got 0"),
  ("train_me_pbt", "--num_replaced_by_best=-1", "num_replaced_by_best must be"),
  ("train_pbt", "--learner=sacc", "--learner=sacc.*did you mean 'sac'"),
  ("train", "--resume --logdir=", "--resume needs --logdir"),
  ("train", "--resume --logdir=none", "holds no run.*name the directory"),
  ("train", f"{' '.join(_RUN)} --logdir=/dev/null/x", "/dev/null/x .*choose"),
])  # fmt: skip
def test_a_command_line_is_refused_in_one_line_and_nothing_is_written(
  launcher, flag, message, capsys, monkeypatch, tmp_path
):
  monkeypatch.chdir(tmp_path)
  _assert_refused(harness.run(capsys, launcher, *flag.split()), message)
  assert list(tmp_path.iterdir()) == []


def test_with_debug_the_error_is_shown_where_it_comes_from():
  with pytest.raises(ValueError, match="num_envs"):
    harness.start("train", "--num_envs=0", "--debug")


def test_a_script_refuses_in_one_line_too(tmp_path):
  done = subprocess.run(
    [sys.executable, harness.LAUNCHERS / "train_pbt.py", "--num_envs=0"],
    cwd=tmp_path,
    env=os.environ | {"JAX_PLATFORMS": "cpu"},
    capture_output=True,
    text=True,
  )
  assert done.returncode == 2
  assert done.stderr == "error: num_envs must be at least 1, got 0.\n"
  assert list(tmp_path.iterdir()) == []


def test_help_lists_the_launchers_flags(capsys, monkeypatch):
  harness.start("train_pbt", "--help")
  out = capsys.readouterr().out
  for name in ("search_space", "discount", "[no]dry_run", "[no]debug"):
    assert re.search(rf"--{re.escape(name)}[:=]", out)


def test_a_directory_in_use_is_refused(capsys, tmp_path):
  (tmp_path / "thesis.tex").write_text("precious")
  outcome = harness.run(capsys, "train", *_RUN, f"--logdir={tmp_path}")
  _assert_refused(outcome, "is not empty")
  assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_choice_overrides_what_a_flagfile_says_for_another(capsys, tmp_path):
  """Flags after a flagfile override it, with all that goes with them."""
  flagfile = tmp_path / "x.flags"

  def error(content, *flags):
    flagfile.write_text(content)
    return harness.run(capsys, "train", f"--flagfile={flagfile}", *flags).err

  skilled = "--learner=diayn\n--num_skills=16\n"
  other = "--skill_type=continuous"
  # It comes as far as this.
  assert "must be at least 1" in error(skilled, other, "--num_timesteps=0")
  for refused in (
    error(skilled, other, "--num_skills=16"), error(f"{skilled}{other}\n")
  ):
    assert "--num_skills=16 has no effect" in refused


@pytest.mark.parametrize(("launcher", "flags", "message"), [
  ("train", "--min_replay_size=17", "nothing will be learned: .* 16 steps"),
  ("train_pbt", "--burn_in_period=16 --population_size=2", "no finite agent"),
])
def test_what_begins_after_the_end_is_warned_of(
  launcher, flags, message, caplog, capsys, monkeypatch
):
  monkeypatch.setattr(runs, "run", lambda *_: ({}, None))
  for steps in (16, 1600):
    caplog.clear()
    harness.run(
      capsys, launcher, "--env_name=point_maze", f"--num_timesteps={steps}",
      "--num_envs=2", "--hidden_layer_sizes=4", "--dry_run", *flags.split(),
    )  # fmt: skip
    assert bool(re.search(message, caplog.text)) == (steps == 16)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
  """The directory of a run of two generations."""
  logdir = tmp_path_factory.mktemp("logs") / "run"
  with untrained.quick_compilation():
    untrained.start(
      "train", *_RUN, "--num_timesteps=16", f"--logdir={logdir}"
    )
  return logdir


def _look(capsys, how, logdir, tmp_path):
  """Runs a launcher that reads the run in a directory."""
  if how == "evaluate":
    return harness.run(capsys, "evaluate", f"--logdir={logdir}")
  if how == "resume":
    return harness.run(
      capsys, "train", "--resume", "--num_timesteps=24", f"--logdir={logdir}"
    )
  return harness.run(
    capsys, "train", *_RUN, "--num_timesteps=16", f"--warm_start={logdir}",
    f"--logdir={tmp_path / 'warm'}",
  )  # fmt: skip


_UNREADABLE = "run holds no run: its config.json can't be read; name the direc"


@pytest.mark.parametrize(("how", "damage", "message"), [
  ("evaluate", lambda text: text[:50], _UNREADABLE),
  ("resume", lambda text: b"\xff" + text, _UNREADABLE),
  ("warm_start", lambda _: b"[]", _UNREADABLE),
  ("resume", {"num_envs": "x"}, "damaged: --num_envs is 'x'; give an"),
  ("evaluate", {"num_envs": None}, "damaged: --num_envs is None;"),
  ("evaluate", {"hidden_layer_sizes": ["a"]}, "damaged: --hidden_layer_size"),
  ("resume", {"layer_norm": 1}, "damaged: --layer_norm is 1; give true"),
])
def test_damaged_settings_are_reported(
  how, damage, message, run, capsys, tmp_path
):
  logdir = shutil.copytree(run, tmp_path / "run")
  path = logdir / "config.json"
  text = path.read_bytes()
  if isinstance(damage, dict):
    path.write_text(json.dumps(json.loads(text) | damage))
  else:
    path.write_bytes(damage(text))
  _assert_refused(_look(capsys, how, logdir, tmp_path), message)


def test_a_run_goes_on_by_the_launcher_that_began_it_alone(run, capsys):
  _assert_refused(
    harness.run(capsys, "train_pbt", "--resume", f"--logdir={run}"),
    "run is a run of train.py, not train_pbt.py; resume it with that launcher",
  )


def test_agents_of_another_activation_are_no_start(run, capsys, tmp_path):
  _assert_refused(
    harness.run(
      capsys, "train", *_RUN, "--activation=tanh", f"--warm_start={run}",
      f"--logdir={tmp_path / 'warm'}",
    ),
    "run has agents with --activation=relu, not tanh; give that",
  )  # fmt: skip


@pytest.mark.parametrize("line", [b"{", b"\xff\xfe", b"{}"])
def test_damaged_rows_are_reported_and_none_is_lost(
  line, run, capsys, tmp_path
):
  logdir = shutil.copytree(run, tmp_path / "run")
  path = logdir / "metrics.jsonl"
  first, *rest = path.read_bytes().splitlines()
  path.write_bytes(b"\n".join([first, line, *rest]))
  before = path.read_bytes()
  _assert_refused(
    _look(capsys, "resume", logdir, tmp_path),
    "metrics.jsonl is damaged in line 2; remove",
  )
  assert path.read_bytes() == before


@pytest.mark.parametrize(("how", "error", "reason"), [
  ("evaluate", PermissionError(13, "denied"), "can't be read: .*denied"),
  ("resume", PermissionError(13, "denied"), "can't be read: .*denied"),
  ("warm_start", MemoryError(), "the memory ran out"),
])
def test_a_checkpoint_that_cannot_be_read_is_told_in_a_line_and_stays(
  how, error, reason, run, capsys, tmp_path, monkeypatch
):
  logdir = shutil.copytree(run, tmp_path / "run")

  def fail(folder):
    raise error

  monkeypatch.setattr("qdrl_haiku.storage.checksums.damage", fail)
  before = sorted(logdir.rglob("*"))
  outcome = _look(capsys, how, logdir, tmp_path)
  assert sorted(logdir.rglob("*")) == before
  assert outcome.err.startswith("error: ") and outcome.err.count("\n") == 1
  assert re.search(reason, outcome.err), outcome.err
  assert outcome.code == (1 if how == "resume" else 2)
  if how == "resume":
    assert f"go on with --resume --logdir={logdir}" in outcome.err
