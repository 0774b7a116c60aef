"""Tests of flags and files that can't even be read: one line says which."""

import json
import re
import shutil
import subprocess
import sys

import pytest

from tests.launchers import harness, untrained

_RUN = (
  "--env_name=point_maze", "--episode_length=10", "--hidden_layer_sizes=4",
  "--num_envs=2", "--eval_interval=8", "--num_eval_episodes=2",
  "--nouse_tensorboard",
)  # fmt: skip


@pytest.mark.parametrize(("launcher", "flag", "message"), [
  ("train", "--num_envs=abc", "--num_envs=abc .*; give an integer[.]"),
  ("train", "--num_envs=8.5", "--num_envs=8.5 .*; give an integer[.]"),
  ("train", "--num_envs=", "--num_envs= .*; give an integer[.]"),
  ("train_pbt", "--tau=abc", "--tau=abc .*; give a number[.]"),
  ("train", "--use_tensorboard=maybe", "board=maybe .*; give true or false[.]"),
  ("train", "--nouse_tensorboard=1", "--nouse_tensorboard=1 .*; see --help"),
  ("evaluate", "--member=x", "--member=x .*; give an integer[.]"),
  ("train_pbt", "--num_env=4", "--num_env is no flag .*mean 'num_envs'"),
  ("train_me_pbt", "--grid_shap=4,4", "--grid_shap is no .*'grid_shape'"),
  ("train", "--qqqqq", "--qqqqq is no flag of this launcher; --help lists"),
  ("train", "--flagfile=/no/such/file", "flagfile.*/no/such/file.; see --h"),
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
])
def test_a_flag_that_cannot_be_read_is_refused_in_one_line(
  launcher, flag, message, capsys, monkeypatch, tmp_path
):
  monkeypatch.chdir(tmp_path)
  _assert_refused(harness.run(capsys, launcher, *flag.split()), message)
  assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="module")
def run(tmp_path_factory):
  """The directory of a run of two generations."""
  logdir = tmp_path_factory.mktemp("logs") / "run"
  with untrained.quick_compilation():
    untrained.start(
      "train", *_RUN, "--num_timesteps=16", f"--logdir={logdir}"
    )
  return logdir


def _settings(**changes):
  def damage(text):
    return json.dumps(json.loads(text) | changes).encode()

  return damage


@pytest.mark.parametrize("how", ["evaluate", "resume", "warm_start"])
@pytest.mark.parametrize(
  "damage",
  [lambda text: text[:50], lambda text: b"\xff" + text, lambda text: b"[]"],
  ids=["cut", "binary", "list"],
)
def test_settings_that_cannot_be_read_are_reported(
  how, damage, run, capsys, tmp_path
):
  logdir = shutil.copytree(run, tmp_path / "run")
  path = logdir / "config.json"
  path.write_bytes(damage(path.read_bytes()))
  _assert_refused(
    _look(capsys, how, logdir, tmp_path),
    "run holds no run: its config.json can't be read; name the directory",
  )


@pytest.mark.parametrize("how", ["evaluate", "resume"])
@pytest.mark.parametrize(("damage", "message"), [
  (_settings(num_envs="x"), "damaged: --num_envs is 'x'; give an"),
  (_settings(num_envs=None), "damaged: --num_envs is None;"),
  (_settings(hidden_layer_sizes=["a"]), "damaged: --hidden_layer_sizes=a"),
  (_settings(layer_norm=1), "damaged: --layer_norm is 1; give true"),
])
def test_settings_of_another_kind_are_reported(
  how, damage, message, run, capsys, tmp_path
):
  logdir = shutil.copytree(run, tmp_path / "run")
  path = logdir / "config.json"
  path.write_bytes(damage(path.read_bytes()))
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
  )


@pytest.mark.parametrize(("launcher", "flags", "message"), [
  ("train", "--min_replay_size=17", "nothing will be learned: .* 16 steps"),
  ("train_pbt", "--burn_in_period=16 --population_size=2", "no finite agent"),
])
def test_what_never_begins_is_told(launcher, flags, message, caplog, capsys):
  harness.run(
    capsys, launcher, "--env_name=point_maze", "--num_timesteps=16",
    "--num_envs=2", "--hidden_layer_sizes=4", "--dry_run", *flags.split(),
  )
  assert re.search(message, caplog.text)
  caplog.clear()
  harness.run(
    capsys, launcher, "--env_name=point_maze", "--num_timesteps=1600",
    "--num_envs=2", "--hidden_layer_sizes=4", "--dry_run", *flags.split(),
  )
  assert not re.search(message, caplog.text)


def test_help_lists_the_launchers_flags():
  finished = subprocess.run(
    [sys.executable, harness.LAUNCHERS / "train_pbt.py", "--help"],
    capture_output=True,
    text=True,
  )
  assert finished.returncode == 0
  for name in ("search_space", "discount", "[no]dry_run", "[no]debug"):
    assert re.search(rf"--{re.escape(name)}[:=]", finished.stdout)


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


@pytest.mark.parametrize("line", [b"{", b"3", b"\xff\xfe", b"{}"])
def test_damaged_rows_are_reported_and_none_is_lost(
  line, run, capsys, tmp_path, monkeypatch
):
  logdir = shutil.copytree(run, tmp_path / "run")
  path = logdir / "metrics.jsonl"
  first, *rest = path.read_bytes().splitlines()
  path.write_bytes(b"\n".join([first, line, *rest]))

  def fail(*_):
    raise AssertionError("It wasn't refused before compilation.")

  monkeypatch.setattr(
    sys.modules["qdrl_haiku.runs.run"], "compile_generation", fail
  )
  before = path.read_bytes()
  _assert_refused(
    _look(capsys, "resume", logdir, tmp_path),
    "metrics.jsonl is damaged in line 2; remove",
  )
  assert path.read_bytes() == before


@pytest.mark.parametrize("how", ["evaluate", "resume", "warm_start"])
@pytest.mark.parametrize(
  ("error", "reason"),
  [
    (PermissionError(13, "Permission denied"), "can't be read: .*denied"),
    (MemoryError(), "the memory ran out"),
  ],
  ids=["permissions", "memory"],
)
def test_a_checkpoint_that_cannot_be_read_is_told_in_a_line_and_stays(
  error, reason, how, run, capsys, tmp_path, monkeypatch
):
  logdir = shutil.copytree(run, tmp_path / "run")

  def fail(folder):
    raise error

  monkeypatch.setattr("qdrl_haiku.storage.checksums.damage", fail)
  before = sorted(logdir.rglob("*"))
  outcome = _look(capsys, how, logdir, tmp_path)
  assert sorted(logdir.rglob("*")) == before
  assert outcome.err.startswith("error: ") and outcome.err.count("\n") == 1
  assert "Traceback" not in outcome.out + outcome.err
  assert re.search(reason, outcome.err), outcome.err
  assert outcome.code == (1 if how == "resume" else 2)
  if how == "resume":
    assert f"go on with --resume --logdir={logdir}" in outcome.err


def _assert_refused(outcome, message):
  assert outcome.code == 2
  assert outcome.err.startswith("error: ") and outcome.err.count("\n") == 1
  assert "Traceback" not in outcome.out + outcome.err
  assert re.search(message, outcome.err), outcome.err
