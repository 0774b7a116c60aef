"""Tests of training agents again with the schedule that PBT found."""

import json
import re
import shutil
import sys

import numpy as np
import pytest

from qdrl_haiku import artifacts, names
from tests.launchers import harness, users_module

_PBT = (
  *users_module.FLAGS, "--population_size=3", "--perturbation_interval=8",
  "--num_timesteps=48", "--num_parents=1", "--num_replaced=2", "--seed=3",
  "--search_space=speed:log_uniform:1e-4:1e-1", "--nouse_tensorboard",
)  # fmt: skip
_SEEDS = (4, 5)
_WINNER = 1


def _rows(logdir, name):
  return [json.loads(line) for line in (logdir / name).read_text().splitlines()]


def _start(*arguments):
  harness.start("retrain_schedule", *arguments)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  """Where a run was tuned, and where its schedule was played to two agents."""
  folder = tmp_path_factory.mktemp("logs")
  users_module.write(folder)
  with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(str(folder))
    harness.start("train_pbt", *_PBT, f"--logdir={folder / 'tuned'}")
    _start(
      f"--logdir={folder / 'tuned'}", f"--member={_WINNER}", "--num_seeds=2",
      f"--output={folder / 'retrained'}",
    )  # fmt: skip
    yield folder
  for name in ("users_own", "users_own.things"):
    sys.modules.pop(name, None)


def _trained_with(logdir, member):
  """The hyperparameters of a member's ancestors, followed row by row."""
  of = {
    (row["generation"], row["member"]): row["hyperparams"]
    for row in _rows(logdir, "pbt_members.jsonl")
  }
  parents = {
    (row["generation"], row["child"]): row["parent"]
    for row in _rows(logdir, "pbt_lineage.jsonl")
  }
  found = []
  for generation in range(max(of)[0], 0, -1):
    found.append(of[generation, member])
    member = parents.get((generation - 1, member), member)
  return found[::-1]


def test_each_generation_has_the_hyperparameters_of_the_ancestor(folder):
  expected = _trained_with(folder / "tuned", _WINNER)
  assert len(expected) == 6
  # There's something to play back.
  assert len({json.dumps(hyperparams) for hyperparams in expected}) > 2
  rows = _rows(folder / "retrained", "pbt_members.jsonl")
  for member in range(2):
    played = [row["hyperparams"] for row in rows if row["member"] == member]
    assert played == expected


def test_all_else_is_as_in_the_tuned_run(folder):
  tuned, retrained = (
    json.loads((folder / name / "config.json").read_text())
    for name in ("tuned", "retrained")
  )
  differing = {
    name
    for name in tuned.keys() & retrained.keys()
    if tuned[name] != retrained[name]
  }
  assert differing == {"launcher", "logdir", "seed"}
  assert retrained["seed"] == 4 and retrained["num_seeds"] == 2
  assert retrained["schedule"]["run"] == str(folder / "tuned")
  assert retrained["schedule"]["perturbation_interval"] == 8


def test_nobody_is_replaced_and_each_seed_is_logged(folder):
  rows = _rows(folder / "retrained", "metrics.jsonl")
  assert [row["step"] for row in rows] == list(range(8, 49, 8))
  for row in rows:
    assert row["pbt/num_replaced"] == 0
    seeds = [row[f"eval/episode_return/seed_{seed}"] for seed in _SEEDS]
    assert seeds[0] != seeds[1]
  lineage = _rows(folder / "retrained", "pbt_lineage.jsonl")
  assert all(row["parent"] in (-1, row["child"]) for row in lineage)
  assert {row["operator"] for row in lineage} == {"init", "schedule"}
  plots = {path.name for path in (folder / "retrained" / "plots").iterdir()}
  assert "hyperparameters.png" in plots


def test_what_was_retrained_has_the_schedule_that_it_was_given(folder):
  first = artifacts.read_schedule(str(folder / "tuned"), _WINNER)
  again = artifacts.read_schedule(str(folder / "retrained"), 0)
  assert again.changes == first.changes


def _agents(logdir):
  make = names.load_function("users_own.things:make_learner")
  return artifacts.read_agents(make(1, 1), str(logdir))[0]


def test_a_resumed_run_ends_as_one_that_was_not_stopped(folder, capsys):
  logdir = folder / "resumed"
  _start(
    f"--logdir={folder / 'tuned'}", f"--member={_WINNER}", "--num_seeds=2",
    f"--output={logdir}", "--num_timesteps=16",
  )  # fmt: skip
  # It knows its schedule.
  (folder / "tuned").rename(folder / "elsewhere")
  try:
    _start(f"--logdir={logdir}", "--resume", "--num_timesteps=48")
  finally:
    (folder / "elsewhere").rename(folder / "tuned")
  for name in ("pbt_members.jsonl", "pbt_lineage.jsonl"):
    assert _rows(logdir, name) == _rows(folder / "retrained", name)
  np.testing.assert_array_equal(
    _agents(logdir), _agents(folder / "retrained")
  )
  out = capsys.readouterr().out
  last = _rows(logdir, "pbt_members.jsonl")[-1]["return"]
  assert f"tuned: member {_WINNER} of {folder / 'tuned'}, return " in out
  assert re.search(
    rf"retrained, seed 5: return {last:.1f} at step 48, last {last:.1f}, best",
    out,
  )


def test_by_default_the_best_agent_counts_and_a_directory_is_made(
  folder, capsys, monkeypatch, tmp_path
):
  monkeypatch.chdir(tmp_path)
  outcome = harness.run(
    capsys, "retrain_schedule", f"--logdir={folder / 'tuned'}", "--seed=9",
    "--num_timesteps=8",
  )  # fmt: skip
  assert outcome.code == 0, outcome.err
  (logdir,) = (tmp_path / "logs").iterdir()
  assert logdir.name.startswith("users_own.things-make_env-retrained_")
  best = max(
    (folder / "tuned" / "best").iterdir(), key=lambda path: int(path.name)
  )
  config = json.loads((logdir / "config.json").read_text())
  assert config["schedule"]["generation"] * 8 == int(best.name)
  assert "retrained, seed 9: return " in outcome.out


@pytest.mark.parametrize(("arguments", "message"), [
  ("", "--logdir is missing: whose schedule"),
  ("--logdir={}/none", "none holds no run: its config.json can't be read"),
  ("--logdir={}/tuned --member=3", "member=3, but there are 3 agents .*0 to 2"),
  ("--logdir={}/tuned --tau=0.1", "--tau=0.1 has no effect: the schedule has"),
  ("--logdir={}/tuned --perturbation_interval=4", "interval is no flag"),
  ("--logdir={}/tuned --warm_start=x", "--warm_start=x has no effect: agents"),
  ("--logdir={}/tuned --resume", "tuned is a run of train_pbt.py, not .*res"),
  ("--logdir={}/tuned --learner=sac", "have other names than critic_learning"),
  ("--logdir={}/tuned --num_seeds=0", "num_seeds must be at least 1, got 0"),
  ("--logdir={}/tuned --num_timesteps=12", "num_timesteps 12 .* 8 or 16"),
  ("--logdir={}/tuned --output={}/tuned", "tuned is not empty; choose another"),
  ("--logdir={}/tuned --output=x --suffix=y", "--suffix=y has no effect"),
  ("--logdir={}/retrained --resume --member=0", "--member=0 has no effect"),
])
def test_nonsense_is_refused_in_one_line(
  arguments, message, folder, capsys, monkeypatch, tmp_path
):
  monkeypatch.chdir(tmp_path)
  outcome = harness.run(
    capsys, "retrain_schedule", *arguments.format(folder, folder).split()
  )
  assert outcome.code == 2
  assert outcome.err.startswith("error: ") and outcome.err.count("\n") == 1
  assert re.search(message, outcome.err), outcome.err


def test_a_damaged_schedule_is_told_when_a_run_goes_on(
  folder, capsys, tmp_path
):
  logdir = shutil.copytree(folder / "retrained", tmp_path / "run")
  path = logdir / "config.json"
  settings = json.loads(path.read_text())
  del settings["schedule"]["changes"]
  path.write_text(json.dumps(settings))
  outcome = harness.run(
    capsys, "retrain_schedule", f"--logdir={logdir}", "--resume"
  )
  assert outcome.code == 2
  assert "damaged: its schedule can't be read" in outcome.err
