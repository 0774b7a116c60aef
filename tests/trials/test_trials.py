"""Tests that what is new is one file."""


import jax
import numpy as np
import pytest

from qdrl_haiku.programs import artifacts
from tests.launchers import harness, kill
from tests.programs.runs.common import rows as _rows
from tests.trials import batch_norm_learner, remembering_controller


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
def test_they_are_evaluated_and_reported_on(logs, tmp_path, capsys):
  run = [f"--logdir={logs / 'own_emitter_and_container'}"]
  outcome = harness.run(
    capsys, "evaluate", *run, "--cell=3", "--num_eval_episodes=2")
  assert outcome.code == 0, outcome.err
  assert '"mean"' in outcome.out
  page = tmp_path / "page.html"
  outcome = harness.run(
    capsys, "report", *run, f"--output={page}", "--rollouts=1")
  assert "warning" not in outcome.err
  assert "Plotly" in page.read_text()
