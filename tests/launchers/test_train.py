"""Tests of what `train.py` and `train_pbt.py` do and leave behind.

One small run trains SAC and one TD3; the others a learner of a user's own.
"""

import csv
import json
import pathlib
import re
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qdrl_haiku import artifacts, environments, experiment, learners, runs
from tests import configs
from tests.launchers import harness, kill, users_module

_GENERATIONS = 3
_FLAGS = (
  "--env_name=point_maze", "--episode_length=20", "--hidden_layer_sizes=8,8",
  "--population_size=4", "--num_envs=4", "--batch_size=8",
  "--num_timesteps=192", "--perturbation_interval=64", "--min_replay_size=32",
  "--replay_capacity=256", "--num_eval_episodes=2", "--tau=0.01", "--seed=3",
)  # fmt: skip
_SEEDS = (5, 6, 7, 8)
_OWN = (*users_module.FLAGS, "--nouse_tensorboard")
_OF_SEEDS = (*_OWN, "--logdir=run", "--num_seeds=4", "--seed=5")


def _rows(path):
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
    _rows(logdir / "metrics.jsonl"), key=lambda row: row["pbt/best_return"]
  )
  steps = [int(path.name) for path in (logdir / "best").iterdir()]
  assert max(steps) == best["step"]


def test_metrics_have_the_documented_names(run):
  rows = _rows(run[0] / "metrics.jsonl")
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
    assert None not in row.values()
  with (run[0] / "metrics.csv").open(newline="") as file:
    table = list(csv.DictReader(file))
  assert [
    {name: float(value) for name, value in row.items()} for row in table
  ] == rows


def test_members_and_lineage_have_the_documented_keys(run):
  members = _rows(run[0] / "pbt_members.jsonl")
  assert [(row["generation"], row["member"]) for row in members] == [
    (g, i) for g in range(1, _GENERATIONS + 1) for i in range(4)
  ]
  for row in members:
    assert row.keys() == {
      "generation", "step", "member", "return", "hyperparams"
    }
  for row in _rows(run[0] / "pbt_lineage.jsonl"):
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


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  """Where four seeds of a user's learner were trained."""
  folder = tmp_path_factory.mktemp("train")
  users_module.write(folder)
  with pytest.MonkeyPatch.context() as patch:
    patch.chdir(folder)
    patch.setattr(sys, "path", list(sys.path))
    harness.start("train", *_OF_SEEDS, "--num_timesteps=160")
    yield folder
  for name in ("users_own", "users_own.things"):
    sys.modules.pop(name, None)


def test_each_seed_and_their_interquartile_mean_are_logged(folder):
  rows = _rows(folder / "run" / "metrics.jsonl")
  assert len(rows) >= 20
  for row in rows[:20]:
    seeds = [row[f"eval/episode_return/seed_{seed}"] for seed in _SEEDS]
    assert len(set(seeds)) == 4
    low, *middle, high = sorted(seeds)
    assert row["eval/episode_return_iqm"] == pytest.approx(sum(middle) / 2)
    assert row["eval/episode_return"] == pytest.approx(sum(seeds) / 4)
    assert low < high
    assert not [name for name in row if name.startswith("pbt/")]
  assert not list((folder / "run").glob("pbt_*"))


def test_a_longer_run_goes_on_in_the_same_intervals(folder, capsys):
  before = _rows(folder / "run" / "metrics.jsonl")[:20]
  harness.start("train", *_OF_SEEDS, "--num_timesteps=176", "--resume")
  rows = _rows(folder / "run" / "metrics.jsonl")
  assert rows[:20] == before
  assert [row["step"] for row in rows] == list(range(8, 177, 8))
  # They go on from where they were.
  assert rows[20]["eval/episode_return"] > rows[19]["eval/episode_return"]
  assert "generation 22/22" in capsys.readouterr().out
  outcome = harness.run(capsys, "train", *_OF_SEEDS, "--resume", "--seed=6")
  assert outcome.code == 2
  assert "--seed was 5 and is 6" in outcome.err


@pytest.mark.slow
def test_a_users_environment_and_learner_are_tuned(folder):
  harness.start(
    "train_pbt", *_OWN, "--population_size=8", "--num_timesteps=160",
    "--perturbation_interval=16", "--logdir=tuned",
    "--search_space=speed:log_uniform:1e-4:1e-1",
  )  # fmt: skip
  rows = _rows(folder / "tuned" / "metrics.jsonl")
  returns = [row["pbt/mean_return"] for row in rows]
  assert len(rows) == 10 and returns[-1] > 0.5 * returns[0]
  assert rows[-1]["training/distance"] < rows[0]["training/distance"]
  speeds = [row["pbt/hyperparams/speed/mean"] for row in rows]
  assert speeds[-1] > speeds[0]


@pytest.mark.slow
def test_hyperparameters_may_be_any_tree(folder, capsys):
  flags = (
    *_OWN, "--env_name=point_maze",
    "--learner=users_own.things:make_learner_of_tuple",
  )  # fmt: skip
  names = {"policy_learning_rate", "moving/speed"}

  # What is searched by default is what has the name of one of ours.
  harness.start(
    "train_pbt", *flags, "--population_size=4", "--num_timesteps=24",
    "--perturbation_interval=8", "--logdir=tree", "--num_replaced=2",
  )  # fmt: skip
  config = json.loads((folder / "tree" / "config.json").read_text())
  assert {name: x["kind"] for name, x in config["ranges"].items()} == {
    "policy_learning_rate": "LogUniform", "moving/speed": "Fixed"
  }  # fmt: skip
  assert config["in_effect"]["hyperparams"].keys() == names
  rows = _rows(folder / "tree" / "pbt_lineage.jsonl")
  assert all(row["new_hyperparams"].keys() == names for row in rows)
  assert {row["operator"] for row in rows} == {"init", "perturb"}
  row = _rows(folder / "tree" / "metrics.jsonl")[-1]
  assert row["pbt/hyperparams/moving/speed/mean"] == pytest.approx(0.1)
  harness.start("train_pbt", "--logdir=tree", "--resume", "--num_timesteps=32")
  harness.start("evaluate", "--logdir=tree", "--member=3")
  harness.start("report", "--logdir=tree", "--output=page.html")
  outcome = harness.run(capsys, "train", *flags, "--tau=0.1", "--logdir=no")
  assert outcome.err == (
    "error: --tau=0.1 has no effect: the learner's hyperparameters are "
    "policy_learning_rate, moving/speed; leave it out.\n"
  )
  # A repertoire stores them too.
  harness.start(
    "train_me_pbt", *flags, "--logdir=filled", "--grid_shape=4,4",
    "--gradient_population_size=5", "--variation_batch_size=5",
    "--perturbation_interval=8", "--num_generations=2",
  )  # fmt: skip
  harness.start("evaluate", "--logdir=filled", "--descriptor=0.1,0.1")


def test_flags_after_a_preset_override_it():
  config = configs.configured(
    "train_pbt", "--num_envs=4 --learner=td3", preset="quickstart"
  )
  plan = experiment.plan(config)
  assert plan.setup.config.population_size == 4
  assert plan.setup.config.num_envs == 4
  assert "exploration_noise" in plan.setup.learner.hyperparams
  assert plan.config.run.num_timesteps == 11200
  logdir = experiment.with_logdir(config).run.logdir
  assert logdir.startswith("logs/inverted_pendulum-pbt_td3-")


@pytest.mark.parametrize(("chosen", "inherits"), [
  ("--controller=pb2", True),
  ("--noinherit_replay", False),
  ("--exploit=none", False),
  ("--controller=random_search", False),
])  # fmt: skip
def test_children_inherit_replay_as_a_preset_says_where_any_is_replaced(
  chosen, inherits
):
  config = configs.configured("train_pbt", chosen, preset="quickstart")
  assert config.training.inherit_replay is inherits


def test_given_hyperparameters_are_fixed_and_sizes_reach_the_networks():
  setup = configs.configured(
    "train_pbt",
    "--env_name=point_maze --discount=0.9 --hidden_layer_sizes=8,8 "
    "--search_space=tau:log_uniform:1e-3:1e-1 --critic_hidden_layer_sizes=5 "
    "--normalize_observations",
  ).build()
  _, drawn = setup.controller.init(jax.random.key(0), 8)
  assert drawn["discount"].tolist() == pytest.approx([0.9] * 8)
  assert len(set(drawn["tau"].tolist())) == 8
  assert len(set(drawn["policy_learning_rate"].tolist())) == 1
  state = jax.eval_shape(setup.learner.init, jax.random.key(0))
  widths = [
    {x.shape[-1] for x in jax.tree.leaves(params)}
    for params in (state.policy_params, state.critic_params)
  ]
  assert widths == [{8, 4}, {5, 1}]
  assert state.observation_statistics.mean.shape == (2,)


class Huge:
  """Its rewards are 1e30."""

  observation_size = 1
  action_size = 1

  def reset(self, key):
    del key
    zero = jnp.zeros(())
    return environments.State(zero, zero[None], zero, zero)

  def step(self, state, action):
    del action
    return state.replace(reward=jnp.float32(1e30))


@pytest.mark.slow
def test_rewards_that_no_agent_can_learn_from_are_named(capsys, tmp_path):
  outcome = harness.run(
    capsys, "train_pbt", f"--env_name={__name__}:Huge", "--episode_length=5",
    "--learner=sac", "--population_size=2", "--num_envs=2",
    "--hidden_layer_sizes=4", "--batch_size=4", "--min_replay_size=4",
    "--perturbation_interval=16", "--num_timesteps=64",
    "--num_eval_episodes=1", f"--logdir={tmp_path / 'run'}",
  )  # fmt: skip
  assert outcome.code == 3
  assert outcome.err.count("WARNING: all members have diverged in 3 ") == 1
  assert "rewards of 1e+30" in outcome.err
  assert outcome.out.count("rewards of 1e+30; they begin anew") == 4


@pytest.mark.parametrize(("error", "flags", "code", "message"), [
  (
    runs.EndedDiverged("all members have diverged."), (), runs.DIVERGED,
    "error: all members have diverged. What the run left is in new.",
  ),
  (
    runs.Interrupted("stopped after generation 1"), (), runs.INTERRUPTED,
    "stopped after generation 1; go on with --resume --logdir=new",
  ),
  (
    runs.Interrupted("stopped"), ("--env_name=gymnasium:Pendulum-v1",),
    runs.INTERRUPTED, "begin another run with --warm_start=new",
  ),
])  # fmt: skip
def test_each_way_to_end_has_a_documented_exit_code(
  error, flags, code, message, folder, capsys, monkeypatch
):
  if flags:
    pytest.importorskip("gymnasium")

  def run(*_):
    raise error

  monkeypatch.setattr(runs, "run", run)
  outcome = harness.run(capsys, "train", *_OWN, *flags, "--logdir=new")
  assert outcome.code == code and message in outcome.err
  readme = pathlib.Path(harness.LAUNCHERS / "README.md").read_text()
  assert f"| {code} |" in readme


_GYMNASIUM = (*_OWN, "--env_name=gymnasium:Pendulum-v1")


@pytest.fixture(scope="module")
def gymnasium_run(folder):
  """The directory of a run of two seeds in an environment of Gymnasium."""
  pytest.importorskip("gymnasium", reason="the extra [gymnasium] is missing")
  harness.start(
    "train", *_GYMNASIUM, "--eval_interval=8", "--num_seeds=2",
    "--num_timesteps=24",
  )  # fmt: skip
  (logdir,) = (folder / "logs").iterdir()
  return logdir


@pytest.mark.slow
def test_an_environment_of_gymnasium_leaves_what_any_leaves(
  gymnasium_run, capsys
):
  assert gymnasium_run.name.startswith("gymnasium-Pendulum-v1-users_own")
  rows = _rows(gymnasium_run / "metrics.jsonl")
  assert [row["step"] for row in rows] == [8, 16, 24]
  for row in rows:
    # Ten steps, of which none costs more than 17.
    assert -170 < row["eval/episode_return"] < 0
    assert row["eval/episode_length"] == 10
  outcome = harness.run(
    capsys, "evaluate", f"--logdir={gymnasium_run}", "--num_eval_episodes=2"
  )
  assert outcome.code == 0, outcome.err
  assert '"num_episodes": 2' in outcome.out
  outcome = harness.run(
    capsys, "train", f"--logdir={gymnasium_run}", "--resume"
  )
  assert re.search("on the host, .* begin another with war", outcome.err)


@pytest.mark.parametrize(("arguments", "message"), [
  ("--backend=spring", "backend='spring' .*'gymnasium:Pendulum-v1'; leave"),
  ("--action_repeat=2", "action_repeat=2 isn't done for 'gymnasium:Pen"),
  ("--env_name=gymnasium:CartPole-v1", "is Discrete.*; only a Box"),
  ("--env_name=gymnasium:Pendulum-v9", "Pendulum-v9' can't be made: .*v1"),
])  # fmt: skip
def test_what_gymnasium_cannot_do_is_refused_in_one_line(
  arguments, message, folder, capsys
):
  pytest.importorskip("gymnasium", reason="the extra [gymnasium] is missing")
  outcome = harness.run(
    capsys, "train", *_GYMNASIUM, "--logdir=new", arguments
  )
  assert outcome.code == 2 and outcome.err.count("\n") == 1
  assert re.search(message, outcome.err), outcome.err
  assert not (folder / "new").exists()


def test_without_gymnasium_one_line_says_what_to_install(monkeypatch, capsys):
  monkeypatch.setitem(sys.modules, "gymnasium", None)
  outcome = harness.run(capsys, "train", "--env_name=gymnasium:Pendulum-v1")
  assert outcome.code == 2 and outcome.err.count("\n") == 1
  assert "pip install 'qdrl_haiku[gymnasium]'" in outcome.err


@pytest.mark.slow
def test_a_run_of_xqc_goes_on_to_the_bit_and_is_exported(tmp_path, capsys):
  flags = (
    *kill.SMALL, "--learner=xqc", "--population_size=2", "--num_atoms=11",
    "--perturbation_interval=40", "--num_eval_episodes=2",
  )  # fmt: skip
  for logdir, steps in (("whole", 120), ("parts", 40), ("parts", 120)):
    path = tmp_path / logdir
    harness.start(
      "train_pbt", *flags, f"--logdir={path}", f"--num_timesteps={steps}",
      *(["--resume"] if path.exists() else []),
    )  # fmt: skip
  learner = learners.xqc(
    2, 2, configs.sized(learners.XQCConfig, (8,), (8,), num_atoms=11)
  )
  found = [
    artifacts.read_agents(learner, str(tmp_path / logdir))[0]
    for logdir in ("whole", "parts")
  ]
  jax.tree.map(np.testing.assert_array_equal, *found)
  counts = [x["count"] for x in found[0].critic_state.values()]
  # A critic step per environment step, but for the first ones.
  assert np.min(counts) > 100 and np.ptp(counts) == 0
  policy = tmp_path / "policy.npz"
  harness.start(
    "evaluate", f"--logdir={tmp_path / 'parts'}", f"--export={policy}"
  )
  assert artifacts.export.load(policy).config["num_normalized"] == 2


@pytest.mark.slow
def test_agents_that_learn_from_large_batches_learn_the_maze(tmp_path):
  """What accelerators are for, a sixteenth of it, in the open maze."""
  logdir = tmp_path / "run"
  harness.start(
    "train_pbt", "--preset=gpu_large_batch", "--env_name=point_maze",
    "--backend=", "--maze_layout=open", "--num_envs=64", "--batch_size=512",
    "--grad_updates_per_step=0.0625", "--replay_capacity=65536",
    "--min_replay_size=1280", "--population_size=2",
    "--hidden_layer_sizes=64,64", "--num_timesteps=6400",
    "--perturbation_interval=1280", "--num_eval_episodes=4",
    "--nouse_tensorboard", f"--logdir={logdir}",
  )  # fmt: skip
  returns = [x["pbt/mean_return"] for x in _rows(logdir / "metrics.jsonl")]
  # The first evaluation is before they learn.
  assert returns[0] < 1 and returns[-1] > 5, returns


@pytest.mark.slow
@pytest.mark.parametrize(("launcher", "preset", "line"), [
  ("train_pbt", "gpu_large_batch", "memory needed"),
  ("train_me_pbt", "pga_halfcheetah_uni", "shared replay"),
  ("train_me_pbt", "dcrl_halfcheetah_uni", "shared replay"),
])  # fmt: skip
def test_presets_are_runs_that_fit_this_machine(
  launcher, preset, line, capsys
):
  outcome = harness.run(capsys, launcher, f"--preset={preset}", "--dry_run")
  assert outcome.code == 0, outcome.err
  assert line in outcome.out


def test_an_interval_that_was_not_given_is_written_down():
  config = configs.configured(
    "train_pbt", "--env_name=point_maze --num_timesteps=16000"
  )
  assert experiment.plan(config).config.training.perturbation_interval == 800
