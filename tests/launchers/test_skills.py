"""Tests of launchers that train agents with skills."""

import json

import jax
import numpy as np
import pytest

from qdrl_haiku import environments, skills
from qdrl_haiku.programs import artifacts, experiment
from qdrl_haiku.programs.storage.directory import RunDirectory
from tests import configs
from tests.launchers import harness

_SMALL = (
  "--learner=diayn", "--env_name=point_maze", "--episode_length=20",
  "--hidden_layer_sizes=4,4", "--batch_size=8", "--min_replay_size=16",
  "--replay_capacity=200", "--log_to=")
# Launcher and flags of each run: more skills than episodes by default, and
# skills that are numbers.
_K = 17
_RUNS = {
  "discrete": (
    "train", *_SMALL, f"--num_skills={_K}", "--population_size=2", "--seed=3",
    "--num_envs=7", "--num_timesteps=70", "--perturbation_interval=35"),
  "circle": (
    "train_pbt", *_SMALL, "--skill_type=continuous", "--num_envs=2",
    "--population_size=2", "--perturbation_interval=40", "--num_parents=1",
    "--num_replaced=1", "--num_timesteps=80", "--num_eval_episodes=4",
    "--fitness=mutual_information_lower_bound")}


@pytest.fixture(scope="module")
def run_of(tmp_path_factory):
  """The directory of a run by name, begun when it is first asked for."""
  logs = tmp_path_factory.mktemp("logs")

  def start(name):
    if not (logs / name).exists():
      harness.start(*_RUNS[name], f"--logdir={logs / name}")
    return logs / name

  return start


@pytest.mark.slow
def test_fitness_is_the_score_of_its_name(run_of):
  """Of two members the better is the parent of the other, unless as fit."""
  directory = RunDirectory(run_of("circle"))
  lineage = directory.rows("pbt_lineage.jsonl")
  for row in directory.rows("metrics.jsonl"):
    children = [x for x in lineage if x["step"] == row["step"]]
    score = "mutual_information_lower_bound"
    ends = [row[f"pbt/{x}_{score}"] for x in ("min", "best")]
    assert len(children) == row["pbt/num_replaced"] == (ends[0] < ends[1])
    for child in children:
      found = [child["child_fitness"], child["parent_fitness"]]
      assert found == pytest.approx(ends, rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "flags", "chosen"), [
  ("discrete", "", np.eye(_K)),
  ("discrete", "--skill=3 --member=1 --num_eval_episodes=6", np.eye(_K)[3]),
  ("circle", "--skill=-3,0 --num_eval_episodes=6", (-1.0, 0.0)),
  ("circle", "--num_eval_episodes=6", None)])
def test_all_skills_or_one_are_evaluated(name, flags, chosen, run_of, capsys):
  outcome = harness.run(
    capsys, "evaluate", f"--logdir={run_of(name)}", *flags.split())
  found = json.loads(outcome.out.splitlines()[-1])
  setup = experiment.make_experiment_agent(
    experiment.read_config(str(run_of(name))))
  if "--member" in flags:
    agents, _ = artifacts.read_agents(setup.learner, str(run_of(name)))
    agent = jax.tree.map(lambda x: x[1], agents)
  else:
    agent, _ = artifacts.read_best(setup.learner, str(run_of(name)))
  env = setup.eval_env
  if np.ndim(chosen) == 1:
    prior = env.prior
    one = skills.constant_skill(
      prior, 3 if name == "discrete" else list(chosen))
    env = environments.SkillEnvironment(env.env, one, "episode")
  evaluation = artifacts.evaluate_agent(
    env, setup.learner, agent, jax.random.key(0), found["num_episodes"])
  assert found["num_episodes"] >= 6
  assert found["mean"] == pytest.approx(evaluation.returns.mean(), abs=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize(("flag", "message"), [
  ("--skill=17", "skill is 17: .* 0 to 16"),
  ("--skill=two", "--skill=two: it is neither .*like 3 or"),
  ("--num_eval_episodes=3", "episodes=3 can't .*_skills=17")])
def test_unknown_skills_are_refused(flag, message, run_of, capsys):
  logdir = f"--logdir={run_of('discrete')}"
  harness.assert_refused(
    harness.run(capsys, "evaluate", logdir, flag), message)


def _setup(*flags, program="train"):
  return experiment.build(
    configs.configured(program, " ".join([*_SMALL, *flags])))


def test_learner_flags_reach_base_learner_and_discriminator():
  setup = _setup(
    "--discriminator_input=observation", "--critic_hidden_layer_sizes=5",
    "--discriminator_hidden_layer_sizes=7,6", "--normalize_observations",
    "--layer_norm")
  assert setup.learner.stores == ()
  state = jax.eval_shape(setup.learner.init, jax.random.key(0))
  layers = state.learned["discriminator_params"]
  assert {name: x["w"].shape for name, x in layers.items() if "w" in x} == {
    "discriminator/linear_0": (2, 7), "discriminator/linear_1": (7, 6),
    "discriminator/output": (6, 8)}
  assert "discriminator/layer_norm_1" in layers
  assert state.agent.policy_params["policy/linear_0"]["w"].shape == (10, 4)
  assert state.agent.critic_params["critic/linear_0"]["w"].shape == (2, 12, 5)
  # Of DIAYN alone, which leaves the skills as they are.
  assert state.observation_statistics.mean.shape == (2,)
  assert state.agent.observation_statistics is None


@pytest.mark.parametrize(("flags", "extras", "fitness"), [
  ("", ("next_descriptor",), "diayn/diversity_return"),
  ("--skill_sampling=episode --skill_type=continuous", ("next_descriptor",),
   "diayn/diversity_return"),
  ("--learner=metra", (), "metra/diversity_return"),
  ("--learner=metra --representation_input=descriptor --fitness=coverage",
   ("descriptor", "next_descriptor"), "eval/coverage"),
  ("--learner=dads", ("descriptor", "next_descriptor"),
   "dads/diversity_return"),
  ("--learner=dads --dynamics_input=observation --base_learner=td3 "
   "--fitness=mutual_information_lower_bound", (),
   "dads/mutual_information_lower_bound"),
  ("--learner=smerl --target_return=3",
   ("next_descriptor", "skill_return"), "episode_return"),
  ("--learner=smerl --fitness=coverage",
   ("next_descriptor", "skill_return"), "eval/coverage")])
def test_each_kind_of_skills_is_composed_by_flags(flags, extras, fitness):
  setup = _setup(flags, program="train_pbt")
  assert setup.learner.stores == extras
  assert setup.config.fitness == fitness
  assert setup.env.keeps_returns == ("skill_return" in extras)
  is_continuous = "metra" in flags or "continuous" in flags
  assert setup.env.sampling == ("episode" if is_continuous else "fixed")
  # Evaluation is to show all skills, and equally often.
  assert setup.eval_env.sampling == "fixed"
  num_skills = None if is_continuous else 8
  for env in (setup.env, setup.eval_env):
    assert env.prior.num_skills == num_skills
    assert env.observation_size == 2 + (num_skills or 2)
  weight = setup.learner.hyperparams["task_reward_weight"]
  assert weight == ("smerl" in flags)


@pytest.mark.slow
@pytest.mark.parametrize("learner", ["metra", "dads", "smerl"])
def test_skills_of_each_kind_train_by_pbt_and_are_drawn_and_led_to_goals(
  learner, tmp_path, capsys
):
  logdir = f"--logdir={tmp_path / 'run'}"
  harness.start(
    "train_pbt", *_SMALL, f"--learner={learner}", "--num_envs=3",
    "--population_size=2", "--perturbation_interval=60", "--num_parents=1",
    "--num_replaced=1", "--num_timesteps=120", "--num_eval_episodes=8",
    "--fitness=coverage", logdir)
  rows = RunDirectory(tmp_path / "run").rows("metrics.jsonl")
  assert all(1 <= row["eval/coverage"] <= 400 for row in rows)
  assert np.isfinite(rows[-1][f"{learner}/diversity_return"])
  for name in ("skills", "trajectories"):
    assert (tmp_path / "run" / "plots" / f"{name}.png").exists()
  export = f"--export={tmp_path / 'policy.npz'}"
  harness.start("evaluate", logdir, "--member=1", export)
  outcome = harness.run(
    capsys, "evaluate", logdir, "--goal=0.5,-0.5", "--num_eval_episodes=1")
  if learner == "dads":
    harness.assert_refused(outcome, "--goal=0.5,-0.5: dads doesn't tell")
  else:
    found = json.loads(outcome.out.splitlines()[-1])
    assert 0 < found["goal_distance"] < 3
    outcome = harness.run(capsys, "evaluate", logdir, "--goal=0.5")
    harness.assert_refused(outcome, "goal=0.5: a goal of 1 numbers .* has 2")


@pytest.mark.slow
def test_skills_of_the_preset_are_told_apart(tmp_path):
  setup = experiment.build(
    configs.configured("train", "", preset="diayn_point_maze"))
  assert setup.env.prior.num_skills == setup.config.num_envs == 16
  assert setup.config.fitness == "diayn/diversity_return"
  harness.start(
    "train", "--preset=diayn_point_maze", "--num_timesteps=6000",
    "--perturbation_interval=2000", "--log_to=", f"--logdir={tmp_path / 'run'}")
  rows = RunDirectory(tmp_path / "run").rows("metrics.jsonl")
  accuracies = [row["diayn/discriminator_accuracy"] for row in rows]
  assert accuracies[-1] >= 0.5, accuracies
