"""Tests of what `train.py` and `train_pbt.py` do and leave behind.

One small run trains SAC, the others a learner of a user's own.
"""

import json
import pathlib
import re

import pytest

from qdrl_haiku import learners
from qdrl_haiku.programs import artifacts, experiment, runs
from qdrl_haiku.programs.storage.directory import RunDirectory
from tests import configs
from tests.launchers import harness, users_module

_FLAGS = (
  "--env_name=point_maze", "--episode_length=20", "--hidden_layer_sizes=8",
  "--population_size=4", "--num_envs=4", "--batch_size=8",
  "--num_timesteps=192", "--perturbation_interval=64", "--min_replay_size=32",
  "--replay_capacity=256", "--num_eval_episodes=2", "--tau=0.01", "--seed=3")
_SEEDS = (5, 6, 7, 8)
_OWN = (*users_module.FLAGS, "--log_to=")
_OF_SEEDS = (*_OWN, "--logdir=run", "--population_size=4", "--seed=5")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
  """The directory of a run of a few SAC agents."""
  logdir = tmp_path_factory.mktemp("logs") / "run"
  harness.start("train_pbt", *_FLAGS, f"--logdir={logdir}")
  return RunDirectory(logdir)


def test_a_run_leaves_all_its_files(run):
  logdir = run.path
  names = {path.name for path in logdir.iterdir() if path.name[:6] != "events"}
  assert names == {
    "config.json", "versions.json", "metrics.jsonl", "metrics.csv",
    "pbt_lineage.jsonl", "pbt_members.jsonl", "best", "checkpoints", "plots"}
  assert len(list(logdir.glob("events*"))) == 1
  checkpoints = {path.name for path in (logdir / "checkpoints").iterdir()}
  assert "192" in checkpoints and len(checkpoints) == 2
  assert {path.name for path in (logdir / "plots").iterdir()} == {
    "learning_curves.png", "diagnostics.png", "hyperparameters.png",
    "lineage.png"}


def test_rows_have_the_documented_names(run):
  rows = run.rows("metrics.jsonl")
  assert [row["step"] for row in rows] == [64, 128, 192]
  names = {
    "step", "generation", "walltime", "seed", "total_env_steps",
    "eval/episode_return", "eval/episode_length", "pbt/best_return",
    "pbt/mean_return", "pbt/min_return", "pbt/num_replaced",
    "pbt/num_nonfinite", "training/critic_loss", "training/policy_loss",
    "training/temperature_loss", "training/q_mean", "training/policy_entropy",
    "training/temperature", "training/gradient_norm/policy",
    "training/gradient_norm/critic", "training/action_saturation",
    "training/observation_mean", "training/observation_std",
    "training/reused_initial_states", "training/nonfinite_transitions",
    "training/nonfinite_observations", "training/nonfinite_rewards",
    "training/env_steps_per_second", "training/updates_per_second",
    "training/compile_seconds"}
  names |= {
    f"pbt/hyperparams/{name}/{statistic}"
    for name in run.settings()["in_effect"]["hyperparams"]
    for statistic in ("mean", "min", "max")}
  for row in rows:
    assert row.keys() == names
    assert row["seed"] == 3
    assert row["pbt/hyperparams/tau/min"] == pytest.approx(0.01)
    assert None not in row.values()
  members = run.rows("pbt_members.jsonl")
  assert [(row["generation"], row["member"]) for row in members] == [
    (g, i) for g in (1, 2, 3) for i in range(4)]
  assert {tuple(row) for row in members} == {
    ("generation", "step", "member", "return", "hyperparams")}
  assert {tuple(row) for row in run.rows("pbt_lineage.jsonl")} == {(
    "generation", "step", "child", "parent", "child_fitness",
    "parent_fitness", "old_hyperparams", "new_hyperparams", "operator")}


def test_the_settings_are_those_of_the_flags(run):
  config = run.settings()
  for flag in _FLAGS:
    name, value = flag.removeprefix("--").split("=")
    found = config[name]
    found = ",".join(map(str, found)) if isinstance(found, list) else str(found)
    assert found == value
  # Also where flags leave it open.
  assert config["in_effect"]["hyperparams"]["tau"] == 0.01
  assert config["in_effect"]["hyperparams"]["discount"] == 0.95
  assert config["in_effect"]["fitness"] == "episode_return"
  assert config["ranges"]["policy_learning_rate"] == {
    "kind": "LogUniform", "low": 2e-4, "high": 5e-4}
  assert not {"debug", "verbosity", "help", "flagfile"} & config.keys()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  """Where four seeds of a user's learner were trained."""
  with users_module.written(tmp_path_factory.mktemp("train")) as folder:
    harness.start("train", *_OF_SEEDS, "--num_timesteps=160")
    yield folder


def _rows(logdir, name="metrics.jsonl"):
  return RunDirectory(logdir).rows(name)


def test_each_seed_and_their_interquartile_mean_are_logged(folder):
  row = _rows("run")[19]
  seeds = [row[f"eval/episode_return/seed_{seed}"] for seed in _SEEDS]
  assert len(set(seeds)) == 4
  middle = sorted(seeds)[1:3]
  assert row["eval/episode_return_iqm"] == pytest.approx(sum(middle) / 2)
  assert not [name for name in row if name.startswith("pbt/")]
  assert not list((folder / "run").glob("pbt_*"))


def test_a_longer_run_goes_on_in_the_same_intervals(folder, capsys):
  before = _rows("run")[:20]
  harness.start("train", *_OF_SEEDS, "--num_timesteps=176", "--resume")
  rows = _rows("run")
  assert rows[:20] == before
  assert [row["step"] for row in rows] == list(range(8, 177, 8))
  # They go on from where they were.
  assert rows[20]["eval/episode_return"] > rows[19]["eval/episode_return"]
  said = capsys.readouterr().out
  assert "writing to run\n" in said and "generation 22/22" in said
  outcome = harness.run(capsys, "train", *_OF_SEEDS, "--resume", "--seed=6")
  harness.assert_refused(outcome, "--seed was 5 and is 6")


def test_the_best_agent_and_each_member_can_be_evaluated(folder, capsys):
  config = experiment.read_config("run")
  learner = experiment.make_experiment_agent(config).learner
  agents, record = artifacts.read_agents(learner, "run")
  best, best_record = artifacts.read_best(learner, "run")
  generation, step = record["generation"], best_record["step"]
  for flags, action, name in (
    (["--member=2"], agents[2], f"member 2 after generation {generation}"),
    ([], best, f"best agent, of step {step}"),
  ):
    outcome = harness.run(capsys, "evaluate", "--logdir=run", *flags)
    found = json.loads(outcome.out.splitlines()[-1])
    assert (found["agent"], found["num_episodes"]) == (name, 16)
    # An agent is its action, which all of the ten steps reward alike.
    expected = -10 * (float(action[0]) - 0.5) ** 2
    assert found["mean"] == pytest.approx(expected, rel=1e-3)
  outcome = harness.run(capsys, "evaluate", "--logdir=run", "--member=4")
  harness.assert_refused(outcome, "--member=4, but .* 4 agents; .* 0 to 3")


def test_runs_that_are_started_at_once_have_their_own_logdirs():
  config = configs.configured("train", "")
  found = {experiment.with_train_logdir(config).run.logdir for _ in range(3)}
  assert len(found) == 3


def test_flags_after_a_preset_override_it():
  config = configs.configured(
    "train_pbt", "--num_envs=4 --learner=td3", preset="quickstart")
  assert config.training.population_size == config.training.num_envs == 4
  assert isinstance(config.learner, learners.TD3Config)
  assert config.run.num_timesteps == 11200
  logdir = experiment.with_train_logdir(config).run.logdir
  assert logdir.startswith("logs/inverted_pendulum-pbt_td3-")
  # Children inherit replay, as the preset says, where any is replaced.
  for flag, inherits in (
    ("--controller=pb2", True),
    ("--noinherit_replay", False),
    ("--exploit=none", False),
  ):
    config = configs.configured("train_pbt", flag, preset="quickstart")
    assert config.training.inherit_replay is inherits


_TO_GO_ON = "go on with --resume --logdir=new"


@pytest.mark.parametrize(("error", "code", "message"), [
  (runs.EndedDiverged("all members have diverged."), runs.DIVERGED,
   "error: all members have diverged. What the run left is in new."),
  (runs.Diverged("all members have diverged."), 1, "error: all members have"),
  (runs.Interrupted("stopped"), runs.INTERRUPTED, f"stopped; {_TO_GO_ON}"),
  (PermissionError("denied"), 1, f"denied; .* whole: fix it, and {_TO_GO_ON}"),
  (MemoryError(), 1, "error: the memory ran out; what was written before")])
def test_each_way_to_end_has_a_documented_exit_code(
  error, code, message, folder, capsys, monkeypatch
):
  def run(*_):
    raise error

  monkeypatch.setattr(runs, "run", run)
  outcome = harness.run(capsys, "train", *_OWN, "--logdir=new")
  assert outcome.code == code and outcome.err.count("\n") == 1
  assert re.search(message, outcome.err), outcome.err
  readme = pathlib.Path(harness.LAUNCHERS / "README.md").read_text()
  assert f"| {code} |" in readme


@pytest.mark.slow
def test_a_run_in_gymnasium_is_evaluated_and_goes_on(folder, capsys):
  pytest.importorskip("gymnasium", reason="the extra [gymnasium] is missing")
  harness.start(
    "train", *_OWN, "--env_name=gymnasium:Pendulum-v1", "--num_timesteps=16",
    # As they once were called.
    "--eval_interval=8", "--num_seeds", "2")
  (logdir,) = (folder / "logs").iterdir()
  assert logdir.name.startswith("gymnasium-Pendulum-v1-users_own")
  outcome = harness.run(
    capsys, "evaluate", f"--logdir={logdir}", "--num_eval_episodes=2")
  assert '"num_episodes": 2' in outcome.out
  harness.start("train", f"--logdir={logdir}", "--resume", "--num_timesteps=24")
  assert [row["step"] for row in _rows(logdir)] == [8, 16, 24]
