"""Tests of command lines and files that make no sense: one line says which.

What a whole configuration refuses is tested in `tests/experiment`.
"""

import json
import os
import re
import subprocess
import sys

import pytest

from qdrl_haiku import config
from qdrl_haiku.programs import experiment, runs
from tests.launchers import harness

_MAZE = ("--env_name=point_maze", "--hidden_layer_sizes=4", "--num_envs=2")


@pytest.mark.parametrize(("launcher", "flags", "message"), [
  ("train", "--dry_run=maybe", "run=maybe .*; give true or false[.]"),
  ("train", "--nodry_run=1", "--nodry_run=1 .*; see --help"),
  ("train_pbt", "--num_env=4", "--num_env is no flag .*mean 'num_envs'"),
  ("train", "--log_dir=logs", "--log_dir is no flag .*mean 'logdir'"),
  ("train", "extra", "'extra'; flags begin with --"),
  ("train", "--flagfile=/no/such/file", "flagfile.*/no/such/file.; see --h"),
  ("train", "--preset=quick", "preset=quick is unknown; did you mean 'quicks"),
  ("train", "--process_id=0", "--coordinator_address and --num_.* missing"),
  ("train", "--coordinator_address=host:1 --num_processes=2 --process_id=2",
   "--process_id=2 must be at least 0 and below --num_processes=2"),
  ("train_pbt", "--coordinator_address=host --num_processes=2 --process_id=0",
   "--coordinator_address=host has no port; give it like 10.0.0.1:1234"),
  # What a setting is called is what the program calls it.
  ("train", "--resume --logdir=none", "holds no run.*name the directory"),
  ("train", f"{' '.join(_MAZE)} --logdir=/dev/null/x", "/dev/null/x .*choose")])
def test_a_command_line_is_refused_in_one_line_and_nothing_is_written(
  launcher, flags, message, capsys, monkeypatch, tmp_path
):
  monkeypatch.chdir(tmp_path)
  harness.assert_refused(harness.run(capsys, launcher, *flags.split()), message)
  assert list(tmp_path.iterdir()) == []


_SEVERAL = [
  # What absl parses, what settings and parts are, and where it goes.
  ("train_pbt",
   "--num_env=4 --num_envs=0 extra --batch_size 0 --dry_run=maybe --tau=0 "
   "--env_name=point_mase --process_id=1 --logdir=full",
   ["--num_env is no flag of this launcher; did you mean 'num_envs'",
    "unexpected argument 'extra'; ", "--dry_run=maybe has a wrong value",
    "--coordinator_address and --num_processes missing: ",
    "num_envs must be at least 1, got 0[.]", "batch_size must be at least",
    "logdir=full is not empty; ", "--tau=0.0 makes no sense; ",
    "env_name='point_mase' is unknown; did you mean 'point_maze'"]),
  # What follows from another mistake isn't said.
  ("train", "--lerner=diayn --num_skills=3 --env_nam=ant --initial_height=1",
   ["--lerner is no flag", "--env_nam is no flag"]),
  ("train", "--learner=sacc --num_skills=3 --env_name=point_maze --backend=mjx",
   ["--learner=sacc is unknown; did you mean 'sac'",
    "backend='mjx' is not one of 'point_maze'; leave it out[.]"]),
  ("train_me_pbt", "--emitter=gaa --num_envs=4 --seed=-1 --maze_layout=open",
   ["seed must be at least 0, got -1", "emitter=gaa: gaa is unknown; ",
    "--maze_layout=open has no effect: --env_name=inverted_pendulum has"]),
  # What has no effect, and what doesn't fit.
  ("train_pbt",
   "--env_name=point_maze --logdir=full --tau=0 --hyperparam=tua=1 --num_envs=2"
   " --search_space=tou:fixed:1 --num_timesteps=801 --hidden_layer_sizes=8 "
   "--policy_hidden_layer_sizes=4 --critic_hidden_layer_sizes=4",
   ["logdir=full is not empty; ",
    r"hidden_layer_sizes=\(8,\) has no effect: each network is given sizes of ",
    "--tau=0.0 makes no sense; .*number above 0 and at most 1[.]",
    "--hyperparam=tua=1 is no hyperparameter of the learner; did you mean",
    "search_space names 'tou', which is no hyperparameter",
    "num_timesteps=801 can't be cut into .* give perturbation_interval"]),
  ("train",
   "--env_name=point_maze --num_envs=3 --num_timesteps=100 --rollout_length=4 "
   "--eval_interval=9 --seed=4294967295 --population_size=2",
   ["rollout_length=4 has no effect: the learner learns from replay; ",
    "num_timesteps=100 must be a multiple of the 9 steps",
    "seed must be at least 0 and below 2[*][*]32, got 4"]),
  ("evaluate", "--export=a --render=png --render_to=b.gif --best --cell=1",
   ["--logdir is missing: ", "--best and --cell choose one agent each; ",
    "--render_to=b.gif doesn't end in .png", "--export=a ends in none of"]),
  ("report", "--output=full",
   ["--output=full is there; ", "--logdir is missing: "]),
  ("benchmark", "--dry_run --log_to= --output=a.png",
   ["--dry_run has no effect on ", "--log_to has no effect on ",
    "--output=a.png has no effect without --sweep"]),
  ("compare", "--task=a --method=b:",
   ["--output is missing: ", "task='a' has no name; "])]


@pytest.mark.parametrize(
  ("launcher", "flags", "messages"), _SEVERAL,
  ids=[flags for _, flags, _ in _SEVERAL])
def test_all_mistakes_are_said_at_once_a_line_each(
  launcher, flags, messages, capsys, monkeypatch, tmp_path
):
  monkeypatch.chdir(tmp_path)
  (tmp_path / "full").mkdir()
  (tmp_path / "full" / "thesis.txt").touch()
  code, out, err = harness.run(capsys, launcher, *flags.split())
  assert (code, out) == (2, "")
  lines = err.splitlines()
  assert len(lines) == len(messages), err
  for line, message in zip(lines, messages, strict=True):
    assert re.match(f"error: {message}", line), (line, message)


def test_with_debug_the_error_is_shown_where_it_comes_from():
  with pytest.raises(ValueError, match="num_envs"):
    harness.start("train", "--num_envs=0", "--debug")


def test_a_script_refuses_in_one_line_too(tmp_path):
  done = subprocess.run(
    [sys.executable, harness.LAUNCHERS / "train_pbt.py", "--num_envs=0"],
    cwd=tmp_path, env=os.environ | {"JAX_PLATFORMS": "cpu"},
    capture_output=True, text=True)
  assert done.returncode == 2
  assert done.stderr == "error: num_envs must be at least 1, got 0.\n"


@pytest.mark.parametrize(("launcher", "flags", "message"), [
  ("train", "--min_replay_size=17", "nothing will be learned: .* 16 steps"),
  ("train_pbt", "--burn_in_period=17 --population_size=2", "no finite agent")])
def test_what_begins_after_the_end_is_warned_of(
  launcher, flags, message, caplog, capsys, monkeypatch
):
  monkeypatch.setattr(runs, "run", lambda *_: ({}, None))
  for steps in (16, 1600):
    caplog.clear()
    harness.run(
      capsys, launcher, *_MAZE, f"--num_timesteps={steps}", "--dry_run",
      *flags.split())
    assert bool(re.search(message, caplog.text)) == (steps == 16)


_UNREADABLE = "run holds no run: its config.json can't be read; name the direc"


@pytest.mark.parametrize(("how", "text", "message"), [
  ("evaluate --logdir", b'{"num_envs', _UNREADABLE),
  ("train --resume --logdir", b"\xff", _UNREADABLE),
  ("train --warm_start", b"[]", _UNREADABLE),
  ("train --resume --logdir", {"num_envs": "x"},
   "damaged: num_envs is 'x'; give an"),
  ("train_pbt --resume --logdir", {},
   "run is a run of train.py, not train_pbt.py; resume it with that launcher"),
  ("train --warm_start", {"activation": "tanh"},
   "run has agents with --activation=tanh, not relu; give that")])
def test_settings_of_a_run_that_cannot_be_taken_are_reported(
  how, text, message, capsys, monkeypatch, tmp_path
):
  monkeypatch.chdir(tmp_path)
  path = tmp_path / "run" / "config.json"
  path.parent.mkdir()
  if isinstance(text, dict):
    settings = config.config_tree_values(experiment.TRAIN.defaults)
    text = json.dumps(settings | {"launcher": "train.py"} | text).encode()
  path.write_bytes(text)
  launcher, *flags, last = how.split()
  more = () if launcher == "evaluate" or "--resume" in flags else _MAZE
  outcome = harness.run(capsys, launcher, *flags, f"{last}=run", *more)
  harness.assert_refused(outcome, message)
  assert path.read_bytes() == text
