"""Tests of what `train_me_pbt.py` does and leaves behind.

The fast tier fills a repertoire with agents of a learner of a user's own.
"""

import json
import shutil

import jax
import numpy as np
import pytest

from qdrl_haiku.programs import reports
from tests import toy
from tests.launchers import harness, users_module
from tests.programs.runs.common import rows as _rows

_PBT = (
  *users_module.FLAGS, f"--env_name={__name__}:StillWalk", "--grid_shape=16,8",
  "--population_size=4", "--num_replaced=1",
  "--num_replaced_by_samples=1", "--variation_batch_size=2", "--num_envs=4",
  "--num_initial_genotypes=4", "--iso_sigma=0.5", "--log_to=",
  "--perturbation_interval=32", "--repertoire_interval=2",
  "--reevaluation_interval=2", "--num_timesteps=96", "--seed=3",
  "--search_space=speed:log_uniform:1e-3:1e-1")
_ARM = (
  "--learner=td3", "--env_name=arm", "--hidden_layer_sizes=",
  "--num_initial_genotypes=4", "--num_eval_episodes=1", "--num_generations=3",
  "--repertoire_interval=1", "--log_to=", "--num_cells=5")
_NAMES = ("pbt", "pga", "dcrl", "ga", "ascii", "qdpg", "make_emitter")
_OTHERS = {
  "cma": (
    *_ARM, "--emitter=cma:4,ga:4", "--num_strategies=2", "--tessellation=cvt",
    "--num_reevaluations=0"),
  "no cells": (
    *_ARM, "--emitter=ga", "--variation_batch_size=6", "--iso_sigma=0.5",
    "--tessellation=none", "--grid_shape=4,4", "--num_reevaluations=2",
    "--reevaluation_interval=1"),
  # ME-PBT, which fills Pareto fronts, and a critic of each objective.
  "fronts": (
    *_ARM[2:-1], "--learner=td3", "--env_name=rastrigin_pair",
    "--emitter=pbt:2,pgx:4", "--container=mome", "--grid_shape=4,4",
    "--front_size=3", "--num_replaced=1", "--num_replaced_by_samples=1",
    "--num_envs=2", "--batch_size=8", "--min_replay_size=16",
    "--perturbation_interval=16", "--num_reevaluations=2",
    "--num_critic_steps=4", "--num_policy_steps=2"),
  # All emitters, one of them a user's own.
  "mix": (
    "--learner=td3", "--env_name=point_maze", "--episode_length=10",
    "--hidden_layer_sizes=4", "--num_initial_genotypes=4", "--grid_shape=4,4",
    "--num_eval_episodes=1", "--batch_size=8", "--min_replay_size=16",
    "--replay_capacity=200", "--num_critic_steps=4", "--num_policy_steps=2",
    "--num_generations=3", "--repertoire_interval=1", "--log_to=",
    "--num_reevaluations=0", "--emitter=pga:3,dcrl:4,pbt:3,ga:2,ascii:2,qdpg:3,"
    "tests.trials.learning_emitter:make_emitter:2",
    "--num_replaced=1", "--num_replaced_by_samples=1", "--num_envs=2",
    "--perturbation_interval=16", "--adding=adaptive")}


class StillWalk(toy.Walk):
  """Always begins at the same place, so that episodes are all the same."""

  def reset(self, key):
    return super().reset(jax.random.key(0))


def _start(logdir, *flags):
  harness.start("train_me_pbt", *flags, f"--logdir={logdir}")
  return logdir


@pytest.fixture(scope="module")
def run(tmp_path_factory):
  """The directory of three generations of ME-PBT."""
  with users_module.written(tmp_path_factory.mktemp("logs")) as folder:
    yield _start(folder / "run", *_PBT)


def test_a_run_leaves_all_its_files(run):
  assert {path.name for path in run.iterdir()} == {
    "config.json", "versions.json", "metrics.jsonl", "metrics.csv",
    "pbt_lineage.jsonl", "pbt_members.jsonl", "best", "checkpoints", "plots",
    "repertoire", "reevaluation", "corrected.json"}
  # Each second generation, and the last.
  for folder in ("repertoire", "reevaluation"):
    assert {path.name for path in (run / folder).iterdir()} == {
      "64.npz", "96.npz"}
  assert {path.name for path in (run / "plots").iterdir()} == {
    "learning_curves.png", "diagnostics.png", "hyperparameters.png",
    "lineage.png", "repertoire.png", "repertoire_64.png", "repertoire_96.png"}


def test_the_first_row_is_of_the_random_agents(run):
  rows = _rows(run)
  assert [row["generation"] for row in rows] == [0, 1, 2, 3]
  assert [row["step"] for row in rows] == [0, 32, 64, 96]
  assert len({tuple(row) for row in rows}) == 1
  assert None not in {row["qd/num_outside"] for row in rows}
  # Random agents are evaluated, then members collect and all are evaluated.
  steps = [row["total_env_steps"] for row in rows]
  assert steps[0] == 4 * 2 * 10
  assert np.diff(steps).tolist() == [4 * 32 + 6 * 2 * 10] * 3
  for name in ("qd/coverage", "qd/max_fitness"):
    values = [row[name] for row in rows]
    assert values == sorted(values)


def test_numpy_alone_reads_a_repertoire_which_agrees_with_the_last_row(run):
  row = _rows(run)[-1]
  with np.load(run / "repertoire/96.npz", allow_pickle=False) as file:
    arrays = dict(file)
  cells = np.flatnonzero(arrays["fitness"] > -np.inf)
  found = arrays["fitness"][cells]
  assert arrays["fitness"].shape == (128,) and found.size > 1
  assert row["qd/coverage"] == pytest.approx(100 * found.size / 128)
  assert row["qd/max_fitness"] == pytest.approx(float(found.max()))
  offset = StillWalk.descriptor.reward_offset * 10
  assert row["qd/qd_score"] == pytest.approx(
    float(np.sum(found + offset)), rel=1e-5)
  np.testing.assert_array_equal(arrays["cells"], cells)
  record = json.loads(arrays["config"].item())
  assert record["config"].pop("descriptor_names") == ["x", "steps"]
  assert record["config"] == json.loads((run / "config.json").read_text())


def test_where_nothing_is_random_nothing_is_lost(run):
  rows = _rows(run)
  last = rows[-1]
  corrected = json.loads((run / "corrected.json").read_text())
  for name in ("qd_score", "coverage", "max_fitness"):
    assert last[f"qd/lost_{name}"] == pytest.approx(0, abs=1e-3)
    for found in (last[f"qd/corrected_{name}"], corrected[f"qd/{name}"]):
      assert found == pytest.approx(last[f"qd/{name}"], rel=1e-4)
  num_elites = round(last["qd/coverage"] * 128 / 100)
  assert last["qd/reevaluation_env_steps"] == (
    num_elites * corrected["num_reevaluations"] * 10)
  # There was none after the first generation.
  assert [row["qd/lost_coverage"] is None for row in rows] == [
    True, True, False, False]


def test_the_lineage_names_the_cells_of_elites(run):
  rows = _rows(run, "pbt_lineage.jsonl")
  samples = [row for row in rows if row["operator"] == "sample"]
  assert [row["generation"] for row in samples] == [1, 2, 3]
  for row in samples:
    assert row["parent"] == -1 and 0 <= row["cell"] < 128
    assert row["new_hyperparams"].keys() == rows[0]["new_hyperparams"].keys()
  assert len(_rows(run, "pbt_members.jsonl")) == 3 * 4


@pytest.mark.slow
def test_elites_of_a_run_that_is_over_can_be_evaluated_again(run, tmp_path):
  logdir = shutil.copytree(run, tmp_path / "run")
  rows = (logdir / "metrics.jsonl").read_text()
  _start(logdir, *_PBT, "--num_reevaluations=3", "--resume")
  corrected = json.loads((logdir / "corrected.json").read_text())
  assert corrected["num_reevaluations"] == 3
  with np.load(logdir / "reevaluation" / "96.npz") as file:
    assert file["fitness"].shape[1] == 3
  assert (logdir / "metrics.jsonl").read_text() == rows


@pytest.fixture(scope="module")
def other(tmp_path_factory):
  """(name) -> the directory of a run of other emitters, or without cells."""
  folder, known = tmp_path_factory.mktemp("logs"), {}

  def get(name):
    if name not in known:
      known[name] = _start(folder / name, *_OTHERS[name])
    return known[name]

  return get


@pytest.mark.slow
@pytest.mark.parametrize("name", _OTHERS)
def test_other_runs_are_evaluated_and_reported(name, other, tmp_path, capsys):
  logdir = other(name)
  elites, problems = reports.read_elite_table(logdir)
  assert problems == []
  choices = ["--best", f"--cell={elites.cells[0]}"]
  if name == "mix":
    choices.append("--member=0")
  if name == "fronts":
    choices.append("--weights=1,0.2")
    row = _rows(logdir)[-1]
    assert row["qd/moqd_score"] >= row["qd/global_hypervolume"] > 0
    assert row["qd/lost_coverage"] == row["qd/lost_qd_score"] == 0
  for choice in choices:
    outcome = harness.run(
      capsys, "evaluate", f"--logdir={logdir}", choice,
      f"--export={tmp_path / choice}.npz")
    assert outcome.code == 0, outcome.err
    assert '"mean"' in outcome.out
  page = tmp_path / "page.html"
  harness.start(
    "report", f"--logdir={logdir}", f"--output={page}", "--rollouts=1")
  for emitter, number in elites.finds.items():
    assert f"{emitter} {number}" in page.read_text()
  # Critics are there where agents train by them alone.
  with np.load(logdir / f"repertoire/{elites.step}.npz") as arrays:
    has_critics = any("critic_params" in x for x in arrays)
    assert has_critics == (name in ("fronts", "mix"))


@pytest.mark.slow
def test_each_emitter_has_its_numbers(other):
  *_, last = _rows(other("mix"))
  shares = [last[f"emitter/{name}/share"] for name in _NAMES]
  assert shares == pytest.approx(np.array([3, 3, 4, 2, 2, 3, 2]) / 19)
  # Each remembers what its own agents did, and of the first what all did.
  assert last["emitter/pga/replay_size"] == 40 + 2 * 30
  assert last["emitter/dcrl/replay_size"] == 40 + 2 * 40
  assert 0 < last["emitter/qdpg/diversity/q_mean"] < 1
  assert last["emitter/make_emitter/num_updates"] > 0
  assert last["pbt/num_replaced"] == 2
  assert last["emitter/pga/critic_loss"] > 0
  assert "pbt/hyperparams/discount/mean" in last
  elites, _ = reports.read_elite_table(other("mix"))
  assert elites.emitters[:-1] == _NAMES
  assert sum(elites.finds.values()) == len(elites.found_by)
  for name in _NAMES:
    assert elites.finds[name] == last[f"emitter/{name}/num_elites"]
  *_, last = _rows(other("cma"))
  assert last["emitter/cma/step_size"] > 0
  assert last["emitter/cma/share"] == last["emitter/ga/share"] == 0.5


@pytest.mark.slow
def test_map_elites_alone_has_no_members(other, capsys):
  logdir = other("no cells")
  assert not list(logdir.glob("pbt_*"))
  rows = _rows(logdir)
  assert not any(name.startswith("pbt/") for name in rows[0])
  # Without cells as many stay as there are places.
  assert [row["qd/num_elites"] for row in rows] == [4, 5, 5, 5]
  assert 0 < rows[-1]["qd/coverage"] <= 100 * 5 / 16
  corrected = json.loads((logdir / "corrected.json").read_text())
  # The function has no noise.
  assert corrected["qd/qd_score"] == pytest.approx(rows[-1]["qd/qd_score"])
  outcome = harness.run(capsys, "evaluate", f"--logdir={logdir}", "--member=0")
  harness.assert_refused(outcome, "--member=0, but .*--emitter=ga; leave")
