"""Tests of launchers in an environment of Gymnasium."""

import json
import re
import sys

import pytest

from tests.launchers import harness, users_module

pytest.importorskip(
  "gymnasium", reason="Gymnasium is not installed (the extra [gymnasium])"
)
_FLAGS = (
  *users_module.FLAGS[1:], "--env_name=gymnasium:Pendulum-v1",
  "--nouse_tensorboard", "--eval_interval=8",
)  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  """Where two seeds were trained."""
  folder = tmp_path_factory.mktemp("gymnasium")
  users_module.write(folder)
  with pytest.MonkeyPatch.context() as patch:
    patch.chdir(folder)
    patch.setattr(sys, "path", list(sys.path))
    harness.start("train", *_FLAGS, "--num_seeds=2", "--num_timesteps=24")
    yield folder
  for name in ("users_own", "users_own.things"):
    sys.modules.pop(name, None)


@pytest.fixture
def logdir(folder):
  (logdir,) = (folder / "logs").iterdir()
  return logdir


def test_a_run_leaves_what_any_run_leaves(logdir):
  assert logdir.name.startswith("gymnasium-Pendulum-v1-users_own")
  lines = (logdir / "metrics.jsonl").read_text().splitlines()
  rows = [json.loads(line) for line in lines]
  assert [row["step"] for row in rows] == [8, 16, 24]
  for row in rows:
    # Ten steps, of which none costs more than 17.
    assert -170 < row["eval/episode_return"] < 0
    assert row["eval/episode_length"] == 10
  assert {path.name for path in (logdir / "plots").iterdir()} == {
    "learning_curves.png", "diagnostics.png"
  }


def test_the_run_can_be_looked_at(logdir, capsys):
  outcome = harness.run(
    capsys, "evaluate", f"--logdir={logdir}", "--num_eval_episodes=2"
  )
  assert outcome.code == 0, outcome.err
  assert '"num_episodes": 2' in outcome.out


@pytest.mark.parametrize(("arguments", "message"), [
  ("--resume --logdir={}", "on the host, .* begin another with warm_start="),
  ("--backend=spring", "backend='spring' .*'gymnasium:Pendulum-v1'; leave"),
  ("--action_repeat=2", "action_repeat=2 isn't done for 'gymnasium:Pen"),
  ("--env_name=gymnasium:CartPole-v1", "is Discrete.*; only a Box"),
  ("--env_name=gymnasium:Pendulum-v9", "Pendulum-v9' can't be made: .*v1"),
])
def test_what_it_cannot_do_is_refused_in_one_line(
  arguments, message, folder, logdir, capsys
):
  begin = [*_FLAGS, "--num_timesteps=8", "--logdir=new"]
  outcome = harness.run(
    capsys, "train", *([] if "resume" in arguments else begin),
    *arguments.format(logdir).split(),
  )  # fmt: skip
  assert outcome.code == 2
  assert outcome.err.startswith("error: ") and outcome.err.count("\n") == 1
  assert re.search(message, outcome.err), outcome.err
  assert not (folder / "new").exists()


def test_without_gymnasium_one_line_says_what_to_install(monkeypatch, capsys):
  monkeypatch.setitem(sys.modules, "gymnasium", None)
  outcome = harness.run(capsys, "train", "--env_name=gymnasium:Pendulum-v1")
  assert outcome.code == 2 and outcome.err.count("\n") == 1
  assert "pip install 'qdrl_haiku[gymnasium]'" in outcome.err


def test_an_interrupted_run_says_what_can_be_done(folder, capsys, monkeypatch):
  from qdrl_haiku import runs

  def interrupt(*_):
    raise runs.Interrupted("stopped after generation 1")

  monkeypatch.setattr(runs, "run", interrupt)
  outcome = harness.run(capsys, "train", *_FLAGS, "--logdir=new")
  assert outcome.code == runs.INTERRUPTED
  assert "begin another run with --warm_start=new" in outcome.err
