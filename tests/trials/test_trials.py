"""Tests that what is new is one file, or a patch of one room."""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

import jax
import numpy as np
import pytest

from qdrl_haiku.programs import artifacts
from tests.launchers import harness, kill
from tests.programs.runs.common import rows as _rows
from tests.trials import batch_norm_learner, remembering_controller

_ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture(scope="module")
def logs(tmp_path_factory):
  """A run with a learner and a controller, and one with an emitter."""
  folder = tmp_path_factory.mktemp("logs")
  for name in ("own_learner_and_controller", "own_emitter_and_container"):
    harness.start(*kill.COMMANDS[name], f"--logdir={folder / name}")
  return folder


@pytest.mark.slow
def test_a_learner_and_a_controller_of_a_users_own_remember(logs):
  logdir = logs / "own_learner_and_controller"
  learner = batch_norm_learner.make_learner(2, 2)
  agents, _ = artifacts.read_agents(learner, str(logdir))
  critic_state = agents.genotype.critic_state
  # One update a step, but for the first ones: of each member, or its parent.
  counters = [
    x.tolist()
    for path, x in jax.tree_util.tree_leaves_with_path(critic_state)
    if "counter" in jax.tree_util.keystr(path)]
  assert counters == [[240 - 16 + 2] * 4] * 2
  operators = remembering_controller.make_controller({}).operators
  rows = _rows(logdir, "pbt_lineage.jsonl")
  assert {row["operator"] for row in rows} == {"init", operators[1]}
  for row in rows:
    assert row["child"] != row["parent"]


@pytest.mark.slow
def test_an_emitter_learns_from_the_transitions_it_asked_for(logs):
  rows = _rows(logs / "own_emitter_and_container")[1:]
  counts = [row["emitter/num_updates"] for row in rows]
  # 80 transitions in each generation, of which 8 are enough to learn from.
  assert counts == [0, 8, 16, 24, 32, 40]


@pytest.mark.slow
def test_a_container_keeps_the_fittest(logs):
  logdir = logs / "own_emitter_and_container"
  (path,) = (logdir / "repertoire").glob("*.npz")
  fitness = np.load(path)["fitness"]
  assert np.isfinite(fitness).sum() == len(fitness) == 12
  best = [row["qd/max_fitness"] for row in _rows(logdir)]
  assert best == sorted(best) and best[-1] == max(fitness)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "choice"), [
  ("own_learner_and_controller", "--best"),
  ("own_emitter_and_container", "--cell=3")])
def test_they_are_evaluated_and_reported_on(
  name, choice, logs, tmp_path, capsys
):
  run = [f"--logdir={logs / name}"]
  outcome = harness.run(
    capsys, "evaluate", *run, choice, "--num_eval_episodes=2")
  assert outcome.code == 0, outcome.err
  assert '"mean"' in outcome.out
  page = tmp_path / "page.html"
  outcome = harness.run(
    capsys, "report", *run, f"--output={page}", "--rollouts=1")
  assert "warning" not in outcome.err
  assert "Plotly" in page.read_text()


@pytest.mark.parametrize("patch", [
  "steep_activations", "clipped_rewards"])
def test_a_patch_fits_what_it_changes(patch):
  """So that the slow test below doesn't find it too late."""
  text = (pathlib.Path(__file__).parent / f"{patch}.patch").read_text()
  subprocess.run(["patch", "-p1", "--dry-run"], input=text, text=True,
                 cwd=_ROOT, check=True)


@pytest.mark.slow
@pytest.mark.parametrize(("patch", "room", "flag", "other"), [
  ("steep_activations", "networks", "--steep", "--nosteep"),
  ("clipped_rewards", "training", "--reward_limit=0.1", "--reward_limit=9")])
def test_a_setting_is_a_patch_of_its_room(patch, room, flag, other, tmp_path):
  """It is a flag, has an effect, and is checked when a run goes on."""
  text = (pathlib.Path(__file__).parent / f"{patch}.patch").read_text()
  files = re.findall(r"^\+\+\+ b/(\S+)", text, re.MULTILINE)
  assert len(files) == 2
  assert all(x.startswith(f"qdrl_haiku/{room}/") for x in files)
  for name in ("qdrl_haiku", "launchers"):
    shutil.copytree(_ROOT / name, tmp_path / name)
  subprocess.run(["patch", "-p1"], input=text, text=True, cwd=tmp_path,
                 check=True)

  def train(logdir, *flags):
    return subprocess.run(
      [
        sys.executable, tmp_path / "launchers/train.py", *kill.SMALL,
        "--num_timesteps=80", "--eval_interval=40", f"--logdir={logdir}",
        *flags],
      cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(tmp_path)},
      capture_output=True, text=True)

  losses = []
  for given in (flag, other):
    done = train(given, given)
    assert done.returncode == 0, done.stderr
    name = flag[2:].partition("=")[0]
    assert name in json.loads((tmp_path / given / "config.json").read_text())
    last = _rows(tmp_path / given)[-1]
    losses.append(last["training/critic_loss"])
  assert losses[0] != losses[1]
  done = train(flag, other, "--resume", "--num_timesteps=120")
  assert done.returncode == 2 and f"--{name} was" in done.stderr, done.stderr
