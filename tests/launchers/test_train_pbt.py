"""Tests of what `train_pbt.py` does and leaves behind."""

import csv
import json
import os
import subprocess
import sys

import pytest

from tests.launchers import harness, users_module

_GENERATIONS = 3
_FLAGS = (
  "--env_name=point_maze",
  "--episode_length=20",
  "--hidden_layer_sizes=8,8",
  "--population_size=4",
  "--num_envs=4",
  "--batch_size=8",
  "--num_timesteps=192",
  "--perturbation_interval=64",
  "--min_replay_size=32",
  "--replay_capacity=256",
  "--num_eval_episodes=2",
  "--tau=0.01",
  "--seed=3",
)


def _json_lines(path):
  def refuse(constant):
    raise AssertionError(f"{constant} is no JSON.")

  lines = path.read_text().splitlines()
  return [json.loads(line, parse_constant=refuse) for line in lines]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
  """The directory of a run of a few SAC agents, and what was printed."""
  logdir = tmp_path_factory.mktemp("logs") / "run"
  with pytest.MonkeyPatch.context() as patch:
    printed = []
    patch.setattr(
      "builtins.print", lambda *args, **_: printed.append(" ".join(args))
    )
    harness.start("train_pbt", *_FLAGS, f"--logdir={logdir}")
  return logdir, printed


def test_a_run_leaves_all_its_files(run):
  logdir, _ = run
  names = {path.name for path in logdir.iterdir() if path.name[:6] != "events"}
  assert names == {
    "config.json", "versions.json", "metrics.jsonl", "metrics.csv",
    "pbt_lineage.jsonl", "pbt_members.jsonl", "best", "checkpoints", "plots",
  }  # fmt: skip
  assert len(list(logdir.glob("events*"))) == 1
  checkpoints = {path.name for path in (logdir / "checkpoints").iterdir()}
  assert "192" in checkpoints and len(checkpoints) == 2
  assert {path.name for path in (logdir / "plots").iterdir()} == {
    "learning_curves.png", "diagnostics.png", "hyperparameters.png"
  }
  best = max(
    _json_lines(logdir / "metrics.jsonl"),
    key=lambda row: row["pbt/best_return"],
  )
  steps = [int(path.name) for path in (logdir / "best").iterdir()]
  assert max(steps) == best["step"]


def test_metrics_have_the_documented_names(run):
  rows = _json_lines(run[0] / "metrics.jsonl")
  assert [row["step"] for row in rows] == [64, 128, 192]
  names = {
    "step", "generation", "walltime", "seed", "total_env_steps",
    "eval/episode_return", "eval/episode_length",
    "pbt/best_return", "pbt/mean_return", "pbt/min_return",
    "pbt/num_replaced", "pbt/num_nonfinite",
    "training/critic_loss", "training/policy_loss",
    "training/temperature_loss", "training/q_mean",
    "training/policy_entropy", "training/temperature",
    "training/gradient_norm/policy", "training/gradient_norm/critic",
    "training/action_saturation", "training/observation_mean",
    "training/observation_std", "training/reused_initial_states",
    "training/nonfinite_transitions", "training/nonfinite_observations",
    "training/nonfinite_rewards", "training/env_steps_per_second",
    "training/updates_per_second", "training/compile_seconds",
  }  # fmt: skip
  hyperparams = {
    "discount", "tau", "policy_learning_rate", "critic_learning_rate",
    "temperature_learning_rate", "target_entropy", "reward_scaling",
  }  # fmt: skip
  names |= {
    f"pbt/hyperparams/{name}/{statistic}"
    for name in hyperparams
    for statistic in ("mean", "min", "max")
  }
  for row in rows:
    assert row.keys() == names
    assert row["seed"] == 3
    assert row["pbt/hyperparams/tau/min"] == pytest.approx(0.01)
    for name, value in row.items():
      assert value is not None, name


def test_the_table_has_the_same_rows(run):
  rows = _json_lines(run[0] / "metrics.jsonl")
  with (run[0] / "metrics.csv").open(newline="") as file:
    table = list(csv.DictReader(file))
  assert [
    {name: float(value) for name, value in row.items()} for row in table
  ] == rows


def test_members_and_lineage_have_the_documented_keys(run):
  members = _json_lines(run[0] / "pbt_members.jsonl")
  assert [(row["generation"], row["member"]) for row in members] == [
    (g, i) for g in range(1, _GENERATIONS + 1) for i in range(4)
  ]
  for row in members:
    assert row.keys() == {
      "generation", "step", "member", "return", "hyperparams"
    }
  for row in _json_lines(run[0] / "pbt_lineage.jsonl"):
    assert row.keys() == {
      "generation", "step", "child", "parent", "child_fitness",
      "parent_fitness", "old_hyperparams", "new_hyperparams", "operator",
    }  # fmt: skip


def test_the_settings_are_those_of_the_flags(run):
  config = json.loads((run[0] / "config.json").read_text())
  for flag in _FLAGS:
    name, value = flag.removeprefix("--").split("=")
    found = config[name]
    found = ",".join(map(str, found)) if isinstance(found, list) else str(found)
    assert found == value
  # Also where flags leave it open.
  assert config["in_effect"]["hyperparams"]["tau"] == 0.01
  assert config["in_effect"]["hyperparams"]["discount"] == 0.995
  assert config["in_effect"]["fitness"] == "episode_return"
  assert config["ranges"]["policy_learning_rate"] == {
    "kind": "LogUniform", "low": 2e-4, "high": 5e-4
  }
  # Of every flag of ours and no other's.
  assert {"exploit", "backend", "logdir"} <= config.keys()
  assert not {"debug", "verbosity", "help", "flagfile"} & config.keys()
  versions = json.loads((run[0] / "versions.json").read_text())
  assert {"python", "jax", "devices"} <= versions.keys()


def test_a_line_per_generation_is_printed(run):
  logdir, printed = run
  assert printed[0] == f"writing to {logdir}"
  assert printed[-1] == f"done: {logdir}"
  lines = [line for line in printed if line.startswith("generation")]
  assert len(lines) == _GENERATIONS
  assert len([line for line in printed if "a kill loses" in line]) == 1
  for part in ("generation 3/3", "step 192", "best", "mean", "steps/s", "0 s"):
    assert part in lines[-1]


class _Stopped(Exception):
  """Raised where a run would compile."""


def _settings_of(monkeypatch, tmp_path, *arguments):
  """What a launcher makes of its flags, without compiling anything."""
  import qdrl_haiku.runs  # noqa: F401

  def stop(setup, *_):
    raise _Stopped(setup)

  monkeypatch.chdir(tmp_path)
  monkeypatch.setattr(
    sys.modules["qdrl_haiku.runs.run"], "_train", stop
  )
  with pytest.raises(_Stopped) as stopped:
    harness.start("train_pbt", *arguments)
  return stopped.value.args[0]


def test_flags_after_a_preset_override_it(monkeypatch, tmp_path):
  preset = harness.LAUNCHERS / "flagfiles" / "quickstart.flags"
  setup = _settings_of(
    monkeypatch, tmp_path, f"--flagfile={preset}", "--num_envs=4",
    "--learner=td3",
  )  # fmt: skip
  assert setup.config.population_size == 4
  assert setup.config.num_envs == 4
  assert "exploration_noise" in setup.learner.hyperparams
  (logdir,) = (tmp_path / "logs").iterdir()
  assert logdir.name.startswith("inverted_pendulum-pbt_td3-")
  config = json.loads((logdir / "config.json").read_text())
  assert config["num_timesteps"] == 11200


def test_an_interval_that_was_not_given_is_written_down(monkeypatch, tmp_path):
  setup = _settings_of(
    monkeypatch, tmp_path, "--env_name=point_maze", "--num_timesteps=16000"
  )
  assert setup.config.perturbation_interval == 800
  (logdir,) = (tmp_path / "logs").iterdir()
  config = json.loads((logdir / "config.json").read_text())
  assert config["perturbation_interval"] == 800


@pytest.mark.parametrize(("chosen", "inherits"), [
  ("--controller=pb2", True),
  ("--noinherit_replay", False),
  ("--exploit=none", False),
  ("--controller=random_search", False),
])  # fmt: skip
def test_children_inherit_replay_as_a_preset_says_where_someone_takes_over(
  chosen, inherits, monkeypatch, tmp_path
):
  preset = harness.LAUNCHERS / "flagfiles" / "quickstart.flags"
  setup = _settings_of(
    monkeypatch, tmp_path, f"--flagfile={preset}", chosen
  )
  assert setup.config.inherit_replay is inherits
  (logdir,) = (tmp_path / "logs").iterdir()
  config = json.loads((logdir / "config.json").read_text())
  assert config["inherit_replay"] is inherits


def test_given_hyperparameters_are_fixed_and_sizes_reach_the_networks(
  monkeypatch, tmp_path
):
  import jax

  setup = _settings_of(
    monkeypatch, tmp_path, "--env_name=point_maze", "--discount=0.9",
    "--search_space=tau:log_uniform:1e-3:1e-1", "--hidden_layer_sizes=8,8",
    "--critic_hidden_layer_sizes=5", "--normalize_observations",
  )  # fmt: skip
  _, drawn = setup.controller.init(jax.random.key(0), 8)
  assert drawn["discount"].tolist() == pytest.approx([0.9] * 8)
  assert len(set(drawn["tau"].tolist())) == 8
  assert len(set(drawn["policy_learning_rate"].tolist())) == 1
  state = jax.eval_shape(setup.learner.init, jax.random.key(0))
  shapes = {
    jax.tree_util.keystr(path): x.shape
    for path, x in jax.tree_util.tree_leaves_with_path(state)
  }
  widths = {
    name: {x[-1] for path, x in shapes.items() if f".{name}_params" in path}
    for name in ("policy", "critic")
  }
  assert widths == {"policy": {8, 4}, "critic": {5, 1}}
  assert any("observation_statistics" in path for path in shapes)


@pytest.mark.slow
def test_a_users_environment_and_learner_are_tuned(tmp_path):
  users_module.write(tmp_path)
  done = subprocess.run(
    [
      sys.executable, harness.LAUNCHERS / "train_pbt.py", *users_module.FLAGS,
      "--population_size=8", "--num_timesteps=160",
      "--perturbation_interval=16", "--logdir=run",
      "--search_space=speed:log_uniform:1e-4:1e-1", "--nouse_tensorboard",
    ],
    cwd=tmp_path,
    env=os.environ | {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "1"},
    capture_output=True,
    text=True,
    timeout=300,
  )  # fmt: skip
  assert done.returncode == 0, done.stderr
  assert done.stderr == ""
  rows = _json_lines(tmp_path / "run" / "metrics.jsonl")
  returns = [row["pbt/mean_return"] for row in rows]
  assert len(rows) == 10 and returns[-1] > 0.5 * returns[0]
  assert rows[-1]["training/distance"] < rows[0]["training/distance"]
  speeds = [row["pbt/hyperparams/speed/mean"] for row in rows]
  assert speeds[-1] > speeds[0]


@pytest.mark.slow
def test_hyperparameters_may_be_any_tree(tmp_path, monkeypatch, capsys):
  users_module.write(tmp_path)
  monkeypatch.syspath_prepend(str(tmp_path))
  monkeypatch.chdir(tmp_path)
  flags = (
    *users_module.FLAGS[2:], "--env_name=point_maze",
    "--learner=users_own.things:make_learner_of_tuple", "--nouse_tensorboard",
  )  # fmt: skip
  names = {"policy_learning_rate", "moving/speed"}

  def start(name, *arguments):
    outcome = harness.run(capsys, name, *arguments)
    assert outcome.code == 0, outcome.err

  # What is searched by default is what has the name of one of ours.
  start(
    "train_pbt", *flags, "--population_size=4", "--num_timesteps=24",
    "--perturbation_interval=8", "--logdir=run", "--num_replaced=2",
  )  # fmt: skip
  config = json.loads((tmp_path / "run" / "config.json").read_text())
  assert {name: x["kind"] for name, x in config["ranges"].items()} == {
    "policy_learning_rate": "LogUniform", "moving/speed": "Fixed"
  }  # fmt: skip
  assert config["in_effect"]["hyperparams"].keys() == names
  rows = _json_lines(tmp_path / "run" / "pbt_lineage.jsonl")
  assert all(row["new_hyperparams"].keys() == names for row in rows)
  assert {row["operator"] for row in rows} == {"init", "perturb"}
  row = _json_lines(tmp_path / "run" / "metrics.jsonl")[-1]
  assert row["pbt/hyperparams/moving/speed/mean"] == pytest.approx(0.1)
  start("train_pbt", "--logdir=run", "--resume", "--num_timesteps=32")
  start("evaluate", "--logdir=run")
  start("evaluate", "--logdir=run", "--member=3")
  start("report", "--logdir=run", "--output=page.html")
  # And what is given is fixed.
  start(
    "train", *flags, "--policy_learning_rate=0.5", "--num_timesteps=8",
    "--eval_interval=8", "--logdir=given",
  )  # fmt: skip
  config = json.loads((tmp_path / "given" / "config.json").read_text())
  assert config["in_effect"]["hyperparams"] == {
    "policy_learning_rate": 0.5, "moving/speed": 0.1
  }  # fmt: skip
  outcome = harness.run(capsys, "train", *flags, "--tau=0.1", "--logdir=no")
  assert outcome.err == (
    "error: --tau=0.1 has no effect: the learner's hyperparameters are "
    "policy_learning_rate, moving/speed; leave it out.\n"
  )
  # A repertoire stores them too.
  start(
    "train_me_pbt", *flags, "--logdir=filled", "--grid_shape=4,4",
    "--gradient_population_size=5", "--variation_batch_size=5",
    "--perturbation_interval=8", "--num_generations=2",
  )  # fmt: skip
  start("evaluate", "--logdir=filled", "--descriptor=0.1,0.1")
  start("report", "--logdir=filled", "--output=filled.html", "--rollouts=1")
  for name in ("users_own", "users_own.things"):
    sys.modules.pop(name, None)
