"""Tests of launchers that train agents with skills."""

import json

import jax
import numpy as np
import pytest

from qdrl_haiku import environments
from tests import configs
from tests.launchers import harness, untrained

_SMALL = (
  "--learner=diayn", "--env_name=point_maze", "--episode_length=20",
  "--hidden_layer_sizes=4,4", "--batch_size=8", "--min_replay_size=16",
  "--replay_capacity=200", "--nouse_tensorboard",
)  # fmt: skip
# Seven environments and five skills.
_TRAIN = (
  *_SMALL, "--num_skills=5", "--num_envs=7", "--num_seeds=2", "--seed=3",
  "--num_timesteps=105", "--eval_interval=35",
)  # fmt: skip
_PBT = (
  *_SMALL, "--num_skills=3", "--num_envs=2", "--population_size=3",
  "--num_parents=1", "--num_replaced=1", "--num_timesteps=80",
  "--perturbation_interval=40",
)  # fmt: skip
_SCORES = {
  "diversity_return", "mutual_information_lower_bound",
  "discriminator_accuracy", "discriminator_accuracy_whole_episode",
  "chance_accuracy", "state_coverage",
}  # fmt: skip


def _rows(logdir, name):
  lines = (logdir / name).read_text().splitlines()
  return [json.loads(line, parse_constant=pytest.fail) for line in lines]


@pytest.fixture(scope="module", autouse=True)
def quick_compilation():
  with untrained.quick_compilation():
    yield


@pytest.mark.slow
def test_metrics_have_the_documented_names(tmp_path):
  run = tmp_path / "run"
  harness.start("train", *_TRAIN, f"--logdir={run}")
  assert {path.name for path in (run / "plots").iterdir()} == {
    "learning_curves.png", "diagnostics.png", "skills.png",
    "trajectories.png",
  }  # fmt: skip
  rows = _rows(run, "metrics.jsonl")
  assert [row["step"] for row in rows] == [35, 70, 105]
  for row in rows:
    assert {name for name in row if name.startswith("diayn/")} == {
      f"diayn/{name}{seed}"
      for name in _SCORES
      for seed in ("", "/seed_3", "/seed_4")
    }
    for name in (
      "discriminator_loss", "intrinsic_reward", "critic_loss", "policy_loss",
      "gradient_norm/discriminator",
    ):  # fmt: skip
      assert row[f"training/{name}"] is not None
    assert row["diayn/chance_accuracy"] == pytest.approx(1 / 5)
    for name in _SCORES:
      seeds = [row[f"diayn/{name}/seed_{seed}"] for seed in (3, 4)]
      assert row[f"diayn/{name}"] == pytest.approx(np.mean(seeds), rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
  ("fitness", "score"),
  [
    ("diversity_return", "diversity_return"),
    ("episode_return", "return"),
    ("discriminator_accuracy", "discriminator_accuracy"),
    ("mutual_information_lower_bound", "mutual_information_lower_bound"),
  ],
)
def test_fitness_is_the_score_of_its_name(fitness, score, tmp_path):
  """Of three members the best is the parent of the worst, unless as fit."""
  untrained.start(
    "train_pbt", *_PBT, f"--fitness={fitness}", f"--logdir={tmp_path / 'run'}"
  )
  lineage = _rows(tmp_path / "run", "pbt_lineage.jsonl")
  skills = _rows(tmp_path / "run", "skills.jsonl")
  for row in _rows(tmp_path / "run", "metrics.jsonl"):
    children = [r for r in lineage if r["step"] == row["step"]]
    differ = row[f"pbt/min_{score}"] < row[f"pbt/best_{score}"]
    assert len(children) == row["pbt/num_replaced"] == differ
    for child in children:
      for kind, of in (("child", "min"), ("parent", "best")):
        assert child[f"{kind}_fitness"] == pytest.approx(
          row[f"pbt/{of}_{score}"], rel=1e-6
        )
    # A member's diversity is that of its skills.
    means = [
      np.mean([
        r["diversity_return"] for r in skills
        if r["step"] == row["step"] and r["member"] == i
      ])
      for i in range(3)
    ]  # fmt: skip
    for kind, of in (("min", min), ("best", max)):
      assert row[f"pbt/{kind}_diversity_return"] == pytest.approx(
        of(means), rel=1e-4, abs=1e-5
      )


@pytest.mark.slow
def test_an_environment_without_descriptors_can_have_skills(tmp_path):
  untrained.start(
    "train", *_SMALL,
    "--env_name=tests.experiment.test_refusals:countdown",
    "--discriminator_input=observation", "--num_timesteps=16",
    "--eval_interval=16", f"--logdir={tmp_path / 'run'}",
  )  # fmt: skip
  (row,) = _rows(tmp_path / "run", "metrics.jsonl")
  assert "diayn/state_coverage" not in row
  plots = {path.name for path in (tmp_path / "run" / "plots").iterdir()}
  assert "skills.png" in plots and "trajectories.png" not in plots


def _setup(*flags, program="train"):
  return configs.configured(program, " ".join([*_SMALL, *flags])).build()


@pytest.mark.parametrize(
  ("flags", "sampling"),
  [
    ("", "fixed"),
    ("--skill_sampling=episode", "episode"),
    ("--skill_type=continuous", "episode"),
    ("--skill_type=continuous --skill_sampling=fixed", "fixed"),
  ],
)
def test_skill_flags_reach_the_environments(flags, sampling):
  setup = _setup(flags)
  assert isinstance(setup.env, environments.SkillEnvironment)
  assert setup.env.sampling == sampling
  # Evaluation is to show all skills, and equally often.
  assert setup.eval_env.sampling == "fixed"
  num_skills = None if "continuous" in flags else 8
  for env in (setup.env, setup.eval_env):
    assert env.prior.num_skills == num_skills
    assert env.observation_size == 2 + (num_skills or 2)
  assert setup.config.replay_extras == ("next_descriptor",)


def test_learner_flags_reach_base_learner_and_discriminator():
  setup = _setup(
    "--discriminator_input=observation", "--critic_hidden_layer_sizes=5",
    "--discriminator_hidden_layer_sizes=7,6", "--normalize_observations",
    "--layer_norm", "--discriminator_learning_rate=0.01",
    "--task_reward_weight=0.5", "--discount=0.9",
  )  # fmt: skip
  assert setup.config.replay_extras == ()
  hyperparams = setup.learner.hyperparams
  assert hyperparams["discriminator_learning_rate"] == 0.01
  assert hyperparams["task_reward_weight"] == 0.5
  assert hyperparams["discount"] == 0.9
  state = jax.eval_shape(setup.learner.init, jax.random.key(0))
  layers = state.discriminator_params
  assert {name: x["w"].shape for name, x in layers.items() if "w" in x} == {
    "discriminator/linear_0": (2, 7),
    "discriminator/linear_1": (7, 6),
    "discriminator/output": (6, 8),
  }
  assert "discriminator/layer_norm_1" in layers
  assert state.agent.policy_params["policy/linear_0"]["w"].shape == (10, 4)
  assert state.agent.critic_params["critic/linear_0"]["w"].shape == (2, 12, 5)
  # Of DIAYN alone, which leaves the skills as they are.
  assert state.observation_statistics.mean.shape == (2,)
  assert state.agent.observation_statistics is None


def test_the_hyperparameters_of_diayn_can_be_searched():
  setup = _setup(
    "--search_space=discriminator_learning_rate:log_uniform:1e-4:1e-2",
    "--search_space=task_reward_weight:uniform:0:1",
    program="train_pbt",
  )
  _, drawn = setup.controller.init(jax.random.key(0), 8)
  for name in ("discriminator_learning_rate", "task_reward_weight"):
    assert len(set(drawn[name].tolist())) == 8
  assert len(set(drawn["discount"].tolist())) == 1


def test_the_preset_is_a_run_with_skills():
  setup = configs.configured("train", "", preset="diayn_point_maze").build()
  assert setup.env.prior.num_skills == 16
  assert setup.config.num_envs == 16
  assert setup.config.fitness == "diayn/diversity_return"


@pytest.mark.slow
def test_skills_of_the_preset_are_told_apart(tmp_path):
  harness.start(
    "train", "--preset=diayn_point_maze", "--num_timesteps=6000",
    "--eval_interval=2000", "--nouse_tensorboard",
    f"--logdir={tmp_path / 'run'}",
  )  # fmt: skip
  rows = _rows(tmp_path / "run", "metrics.jsonl")
  accuracies = [row["diayn/discriminator_accuracy"] for row in rows]
  assert accuracies[-1] >= 0.5, accuracies
