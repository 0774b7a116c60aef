"""Tests that parts of users' own need no edit inside the package."""

import json

import jax
import pytest

from qdrl_haiku import artifacts, map_elites
from tests.launchers import harness
from tests.trials import batch_norm_learner, remembering_controller

_SMALL = [
  "--env_name=point_maze", "--episode_length=20", "--batch_size=16",
  "--min_replay_size=32", "--replay_capacity=400", "--nouse_tensorboard",
]  # fmt: skip
_POPULATION = [
  *_SMALL,
  "--learner=tests.trials.batch_norm_learner:make_learner",
  "--controller=tests.trials.remembering_controller:make_controller",
  "--search_space=noise:uniform:0.1:0.9", "--num_envs=2",
  "--population_size=4", "--num_timesteps=160", "--perturbation_interval=40",
  "--num_eval_episodes=2",
]  # fmt: skip
_REPERTOIRE = [
  *_SMALL, "--learner=td3", "--hidden_layer_sizes=8",
  "--emitter=tests.trials.learning_emitter:make_emitter",
  "--variation_batch_size=4", "--num_initial_genotypes=4", "--grid_shape=4,4",
  "--num_generations=4", "--num_eval_episodes=1", "--num_reevaluations=0",
]  # fmt: skip


@pytest.fixture(scope="module")
def logs(tmp_path_factory):
  """A run with a learner and a controller, and one with an emitter."""
  folder = tmp_path_factory.mktemp("logs")
  harness.start("train_pbt", *_POPULATION, f"--logdir={folder}/population")
  harness.start("train_me_pbt", *_REPERTOIRE, f"--logdir={folder}/repertoire")
  return folder


def _rows(path):
  return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_batch_normalised_critic_has_its_statistics_in_its_state(logs):
  learner = batch_norm_learner.make_learner(2, 2)
  agents, _ = artifacts.read_agents(learner, str(logs / "population"))
  counters = [
    x
    for path, x in _leaves(agents.critic_state)
    if path.endswith("counter")
  ]
  # One update a step, but for the first ones: of each member, or its parent.
  assert len(counters) == 2
  for counter in counters:
    assert counter.shape == (4,)
    assert set(counter.tolist()) == {160 - 32 + 2}


def test_a_controller_that_remembers_tells_what_it_did(logs):
  operators = remembering_controller.make_controller({}).operators
  rows = _rows(logs / "population" / "pbt_lineage.jsonl")
  assert {row["operator"] for row in rows} <= {"init", operators[1]}
  fallen = [row for row in rows if row["operator"] == operators[1]]
  assert fallen
  for row in fallen:
    assert row["child"] != row["parent"]


def test_an_emitter_learns_from_the_transitions_it_asked_for(logs):
  rows = _rows(logs / "repertoire" / "metrics.jsonl")[1:]
  counts = [row["emitter/num_updates"] for row in rows]
  # 80 transitions in each generation, of which 16 are enough to learn from.
  assert counts == [0, 8, 16, 24]
  (last,) = (logs / "repertoire" / "repertoire").glob("*.npz")
  repertoire = map_elites.Repertoire.load(last)
  assert repertoire.occupied.any()


@pytest.mark.parametrize("name", ["population", "repertoire"])
def test_they_are_evaluated_and_reported_on_like_any(
  name, logs, tmp_path, capsys
):
  logdir = f"--logdir={logs / name}"
  outcome = harness.run(capsys, "evaluate", logdir, "--num_eval_episodes=2")
  assert outcome.code == 0, outcome.err
  assert '"mean"' in outcome.out
  page = tmp_path / "page.html"
  outcome = harness.run(
    capsys, "report", logdir, f"--output={page}", "--rollouts=0"
  )
  assert outcome.code == 0, outcome.err
  assert "Plotly" in page.read_text()


def _leaves(tree):
  """Leaves of a tree by their paths."""
  return [
    (jax.tree_util.keystr(path, simple=True, separator="/"), x)
    for path, x in jax.tree_util.tree_leaves_with_path(tree)
  ]
