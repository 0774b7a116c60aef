"""Tests of what `train_me_pbt.py` does and leaves behind.

One small run is of ME-PBT with TD3, and one of MAP-Elites; runs of other
emitters and containers are the slow tier.
"""

import json
import re
import shutil

import jax
import numpy as np
import pytest

from qdrl_haiku import (
  actors,
  environments,
  learners,
  map_elites,
  reports,
)
from qdrl_haiku.environments import point_maze
from qdrl_haiku.storage.directory import RunDirectory
from tests import configs
from tests.launchers import harness, kill

_SHARED = (
  "--learner=td3", "--episode_length=10", "--hidden_layer_sizes=4",
  "--num_eval_episodes=2", "--variation_batch_size=2",
  "--num_initial_genotypes=4", "--iso_sigma=0.5", "--nouse_tensorboard",
  "--seed=3",
)  # fmt: skip
_PBT = (
  *_SHARED, f"--env_name={__name__}:still_maze", "--grid_shape=16,8",
  "--gradient_population_size=4", "--num_replaced_by_best=1",
  "--num_replaced_by_samples=1", "--num_envs=4", "--batch_size=8",
  "--min_replay_size=16", "--replay_capacity=128",
  "--perturbation_interval=32", "--repertoire_interval=2",
  "--reevaluation_interval=2",
)  # fmt: skip
_GA = (
  *_SHARED, "--env_name=point_maze", "--emitter=ga", "--tessellation=cvt",
  "--num_cells=16", "--num_timesteps=60", "--num_reevaluations=0",
)  # fmt: skip
_ARM = (
  "--learner=td3", "--env_name=arm", "--hidden_layer_sizes=",
  "--num_initial_genotypes=4", "--num_eval_episodes=1", "--num_generations=3",
  "--repertoire_interval=1", "--nouse_tensorboard",
)  # fmt: skip
_TAUGHT = (
  "--learner=td3", "--env_name=point_maze", "--episode_length=10",
  "--hidden_layer_sizes=4", "--num_initial_genotypes=4", "--grid_shape=4,4",
  "--num_eval_episodes=1", "--batch_size=8", "--min_replay_size=16",
  "--replay_capacity=200", "--num_critic_steps=4", "--num_policy_steps=2",
  "--num_generations=3", "--repertoire_interval=1", "--nouse_tensorboard",
  "--num_reevaluations=0",
)  # fmt: skip
_NAMES = ("pbt", "pga", "dcrl", "ga", "make_emitter")
_OTHERS = {
  "cma": (
    *_ARM, "--emitter=cma:4,ga:4", "--num_strategies=2",
    "--num_reevaluations=0",
  ),
  "no cells": (
    *_ARM, "--emitter=ga", "--variation_batch_size=6", "--iso_sigma=0.5",
    "--tessellation=none", "--num_cells=5", "--grid_shape=4,4",
    "--num_reevaluations=2", "--reevaluation_interval=1",
  ),
  # All emitters, one of them a user's own.
  "mix": (
    *_TAUGHT, "--emitter=pga:3,dcrl:4,pbt:3,ga:2,"
    "tests.trials.learning_emitter:make_emitter:2",
    "--num_replaced_by_best=1", "--num_replaced_by_samples=1", "--num_envs=2",
    "--perturbation_interval=16", "--adding=adaptive",
  ),
  # Emitters whose shares adapt.
  "adapting": (*_TAUGHT, "--emitter=pga,ga", "--variation_batch_size=6"),
}  # fmt: skip


class _StillMaze(point_maze.PointMaze):
  """Always begins at the same place, so that episodes are all the same."""

  def reset(self, key):
    return super().reset(jax.random.key(0))


def still_maze():
  """A user's environment."""
  return _StillMaze()


def _rows(logdir, name="metrics.jsonl"):
  """Rows without what depends on the clock."""
  return [
    {key: value for key, value in row.items() if not kill.TIMES.search(key)}
    for row in RunDirectory(logdir).rows(name)
  ]


def _arrays(logdir, step):
  """What NumPy alone finds in a repertoire's file."""
  with np.load(logdir / f"repertoire/{step}.npz", allow_pickle=False) as file:
    return dict(file)


def _start(logdir, *flags):
  harness.start("train_me_pbt", *flags, f"--logdir={logdir}")
  return logdir


@pytest.fixture(scope="module")
def run(tmp_path_factory):
  """The directory of three generations of ME-PBT."""
  logdir = tmp_path_factory.mktemp("logs") / "run"
  return _start(logdir, *_PBT, "--num_timesteps=96")


@pytest.fixture(scope="module")
def ga_run(tmp_path_factory):
  """The directory of three generations of MAP-Elites."""
  return _start(tmp_path_factory.mktemp("logs") / "ga", *_GA)


def test_a_run_leaves_all_its_files(run):
  assert {path.name for path in run.iterdir()} == {
    "config.json", "versions.json", "metrics.jsonl", "metrics.csv",
    "pbt_lineage.jsonl", "pbt_members.jsonl", "best", "checkpoints", "plots",
    "repertoire", "reevaluation", "corrected.json",
  }  # fmt: skip
  # Each second generation, and the last.
  for folder in ("repertoire", "reevaluation"):
    assert {path.name for path in (run / folder).iterdir()} == {
      "64.npz", "96.npz"
    }
  assert {path.name for path in (run / "plots").iterdir()} == {
    "learning_curves.png", "diagnostics.png", "hyperparameters.png",
    "repertoire.png", "repertoire_64.png", "repertoire_96.png",
  }  # fmt: skip


def test_the_first_row_is_of_the_random_agents(run):
  rows = _rows(run)
  assert [row["generation"] for row in rows] == [0, 1, 2, 3]
  assert [row["step"] for row in rows] == [0, 32, 64, 96]
  assert len({tuple(row) for row in rows}) == 1
  names = {"qd/qd_score", "qd/coverage", "qd/max_fitness", "qd/num_outside"}
  for row in rows:
    assert None not in {row[name] for name in names}
  # Random agents are evaluated, then members collect and all are evaluated.
  steps = [row["total_env_steps"] for row in rows]
  assert steps[0] == 4 * 2 * 10
  assert np.diff(steps).tolist() == [4 * 32 + 6 * 2 * 10] * 3
  for name in ("qd/coverage", "qd/max_fitness"):
    values = [row[name] for row in rows]
    assert values == sorted(values)


def test_numpy_alone_reads_a_repertoire_which_agrees_with_the_last_row(run):
  row, arrays = _rows(run)[-1], _arrays(run, 96)
  cells = np.flatnonzero(arrays["fitness"] > -np.inf)
  found = arrays["fitness"][cells]
  assert arrays["fitness"].shape == (128,) and found.size > 1
  assert row["qd/coverage"] == pytest.approx(100 * found.size / 128)
  assert row["qd/max_fitness"] == pytest.approx(float(found.max()))
  offset = point_maze.PointMaze.descriptor.reward_offset * 10
  assert row["qd/qd_score"] == pytest.approx(
    float(np.sum(found + offset)), rel=1e-5
  )
  np.testing.assert_array_equal(arrays["cells"], cells)
  x, y = arrays["descriptors"][cells].T
  column = np.minimum((x + 1) / 2 * 16, 15).astype(int)
  line = np.minimum((y + 1) / 2 * 8, 7).astype(int)
  np.testing.assert_array_equal(8 * column + line, cells)
  for name, x in arrays.items():
    if name.startswith("genotypes/"):
      assert len(x) == len(cells) and np.isfinite(x).all(), name
  record = json.loads(arrays["config"].item())
  assert record["config"].pop("descriptor_names") == ["x", "y"]
  assert record["config"] == json.loads((run / "config.json").read_text())


def test_a_stored_policy_does_again_what_it_did(run):
  repertoire = map_elites.Repertoire.load(run / "repertoire/96.npz")
  settings = json.loads((run / "config.json").read_text())
  sizes = tuple(map(int, settings["hidden_layer_sizes"]))
  env = environments.create(
    settings["env_name"], episode_length=settings["episode_length"]
  )
  learner = learners.td3(
    2, 2, configs.sized(
      learners.TD3Config, sizes, sizes, normalize_observations=False
    )
  )  # fmt: skip
  cells = np.flatnonzero(repertoire.occupied)

  @jax.jit
  def evaluate(genotypes):
    return actors.evaluate(
      env,
      learner,
      jax.vmap(learner.from_genotype)(genotypes),
      jax.random.key(17),
      1,
      env.descriptor.function,
    )

  evaluation = evaluate(
    jax.tree.map(lambda x: x[cells], repertoire.genotypes.genotype)
  )
  for found, stored in (
    (evaluation.returns, repertoire.fitness),
    (evaluation.descriptors, repertoire.descriptors),
  ):
    np.testing.assert_allclose(
      found[:, 0], stored[cells], rtol=1e-4, atol=1e-4
    )


def test_where_nothing_is_random_nothing_is_lost(run):
  rows = _rows(run)
  *_, before, last = rows
  corrected = json.loads((run / "corrected.json").read_text())
  assert corrected["num_reevaluations"] == 2
  for name in ("qd_score", "coverage", "max_fitness"):
    assert last[f"qd/lost_{name}"] == pytest.approx(0, abs=1e-3)
    for found in (last[f"qd/corrected_{name}"], corrected[f"qd/{name}"]):
      assert found == pytest.approx(last[f"qd/{name}"], rel=1e-4)
  for name in ("qd/fitness_spread", "qd/descriptor_spread"):
    assert last[name] == pytest.approx(0, abs=1e-3)
  num_elites = round(last["qd/coverage"] * 128 / 100)
  assert last["qd/reevaluation_env_steps"] == num_elites * 2 * 10
  assert before["qd/reevaluation_env_steps"] > 0
  # There was none after the first generation.
  assert [row["qd/lost_coverage"] is None for row in rows] == [
    True, True, False, False
  ]


def test_the_lineage_names_the_cells_of_elites(run):
  rows = _rows(run, "pbt_lineage.jsonl")
  assert [row["operator"] for row in rows[:4]] == ["init"] * 4
  for generation in (1, 2, 3):
    of = [row for row in rows if row["generation"] == generation]
    assert len({row["child"] for row in of}) == len(of) == 2
    samples = [row for row in of if row["operator"] == "sample"]
    assert len(samples) == 1
    assert samples[0]["parent"] == -1 and 0 <= samples[0]["cell"] < 128
    assert samples[0]["new_hyperparams"].keys() == (
      rows[0]["new_hyperparams"].keys()
    )
  assert len(_rows(run, "pbt_members.jsonl")) == 3 * 4


@pytest.mark.parametrize(
  ("program", "flags", "expected"),
  [
    ("train_me_pbt", "", "fan_in"),
    ("train_me_pbt", "--emitter=ga", "fan_in"),
    ("train_me_pbt", "--policy_final_init=small", "small"),
    ("train_pbt", "", "small"),
  ],
)
def test_policies_of_a_repertoire_start_different(program, flags, expected):
  flags = f"--env_name=point_maze --hidden_layer_sizes=4 {flags}"
  setup = configs.configured(program, flags).build()
  params = jax.jit(setup.learner.init)(jax.random.key(0)).policy_params
  are_small = np.abs(params["policy/output"]["w"]).max() <= 3e-3
  assert are_small == (expected == "small")


def _assert_same(found, expected):
  """Compares runs; one that had ended before has a repertoire more."""
  found, expected = kill.contents(found), kill.contents(expected)
  more = [x for x in found.keys() - expected.keys() if ".npz " in x]
  found = {name: x for name, x in found.items() if name not in more}
  assert kill.differences(found, expected) == []


def test_map_elites_alone_goes_on_to_the_bit(ga_run, tmp_path, monkeypatch):
  logdir = _start(tmp_path / "parts", *_GA, "--num_timesteps=20")

  def fail(*_):
    raise AssertionError("The centroids are in the run's directory.")

  monkeypatch.setattr(map_elites, "cvt", fail)
  _assert_same(_start(logdir, *_GA, "--resume"), ga_run)


@pytest.mark.slow
def test_me_pbt_in_two_parts_is_the_same_to_the_bit(run, tmp_path):
  """Its length may be told by generations as well."""
  logdir = _start(tmp_path / "parts", *_PBT, "--num_generations=2")
  _assert_same(_start(logdir, *_PBT, "--num_generations=3", "--resume"), run)
  assert (logdir / "corrected.json").read_text() == (
    run / "corrected.json"
  ).read_text()


@pytest.mark.slow
def test_a_run_begins_with_the_agents_of_another(run, tmp_path):
  logdir = _start(
    tmp_path / "warm", *_PBT, "--num_timesteps=32", f"--warm_start={run}"
  )
  first, cold = _rows(logdir), _rows(run)
  assert first[0] == cold[0]
  assert first[1]["pbt/mean_return"] != cold[1]["pbt/mean_return"]


def test_map_elites_alone_leaves_a_repertoire(ga_run):
  names = {path.name for path in ga_run.iterdir()}
  assert {"repertoire", "metrics.jsonl", "checkpoints", "best"} <= names
  assert not {"pbt_lineage.jsonl", "pbt_members.jsonl"} & names
  rows = _rows(ga_run)
  # Two episodes of ten steps of each offspring.
  assert [row["step"] for row in rows] == [0, 20, 40, 60]
  assert len({tuple(row) for row in rows}) == 1
  assert not any(name.startswith("pbt/") for name in rows[0])
  assert [row["total_env_steps"] for row in rows] == [80, 120, 160, 200]
  assert [path.name for path in (ga_run / "repertoire").iterdir()] == ["60.npz"]
  assert (ga_run / "plots" / "repertoire_60.png").exists()
  repertoire = map_elites.Repertoire.load(ga_run / "repertoire/60.npz")
  assert isinstance(repertoire.tessellation, map_elites.CVT)
  assert repertoire.fitness.shape == (16,)
  assert rows[-1]["qd/coverage"] == pytest.approx(
    100 * float(np.mean(repertoire.occupied))
  )


@pytest.mark.slow
def test_elites_of_a_run_that_is_over_can_be_evaluated_again(run, tmp_path):
  logdir = shutil.copytree(run, tmp_path / "run")
  rows = (logdir / "metrics.jsonl").read_text()
  _start(
    logdir, *_PBT, "--num_timesteps=96", "--num_reevaluations=3", "--resume"
  )
  corrected = json.loads((logdir / "corrected.json").read_text())
  assert corrected["num_reevaluations"] == 3
  with np.load(logdir / "reevaluation" / "96.npz") as file:
    assert file["fitness"].shape[1] == 3
  assert (logdir / "metrics.jsonl").read_text() == rows


def test_map_elites_alone_has_no_members_to_look_at(ga_run, capsys):
  outcome = harness.run(
    capsys, "evaluate", f"--logdir={ga_run}", "--member=0"
  )
  assert outcome.code == 2 and outcome.err.count("\n") == 1
  assert re.search("--member=0, but .*--emitter=ga; leave", outcome.err)


def test_a_run_of_an_older_version_can_be_looked_at(ga_run, tmp_path, capsys):
  """Its first agents had noise, and nothing said how last layers start."""
  logdir = shutil.copytree(ga_run, tmp_path / "old")
  settings = json.loads((logdir / "config.json").read_text())
  del settings["policy_final_init"]
  (logdir / "config.json").write_text(
    json.dumps(settings | {"initial_sigma": 0.1})
  )
  harness.start("evaluate", f"--logdir={logdir}")
  # It goes on only as it began.
  outcome = harness.run(
    capsys, "train_me_pbt", *_GA, "--resume", f"--logdir={logdir}"
  )
  assert outcome.code == 2
  assert "--initial_sigma was 0.1 and is None" in outcome.err


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
def test_other_runs_are_evaluated_exported_and_reported_on(
  name, other, tmp_path, capsys
):
  logdir = other(name)
  elites, problems = reports.read_elites(logdir)
  assert problems == []
  choices = ["--best", f"--cell={elites.cells[0]}"]
  if name == "mix":
    choices.append("--member=0")
  for choice in choices:
    outcome = harness.run(
      capsys, "evaluate", f"--logdir={logdir}", choice,
      f"--export={tmp_path / choice}.npz",
    )  # fmt: skip
    assert outcome.code == 0, outcome.err
    assert '"mean"' in outcome.out
  page = tmp_path / "page.html"
  harness.start(
    "report", f"--logdir={logdir}", f"--output={page}", "--rollouts=1"
  )
  for emitter, number in elites.finds.items():
    assert f"{emitter} {number}" in page.read_text()


@pytest.mark.slow
@pytest.mark.parametrize("name", _OTHERS)
def test_other_runs_in_two_parts_are_the_same_to_the_bit(
  name, other, tmp_path
):
  flags = _OTHERS[name]
  logdir = _start(tmp_path / "parts", *flags, "--num_generations=1")
  _assert_same(_start(logdir, *flags, "--resume"), other(name))


@pytest.mark.slow
def test_each_emitter_of_a_mix_has_its_numbers(other):
  *_, last = _rows(other("mix"))
  shares = [last[f"emitter/{name}/share"] for name in _NAMES]
  assert shares == pytest.approx(np.array([3, 3, 4, 2, 2]) / 14)
  # Each remembers what its own agents did, and of the first what all did.
  assert last["emitter/pga/replay_size"] == 40 + 2 * 30
  assert last["emitter/dcrl/replay_size"] == 40 + 2 * 40
  assert last["emitter/make_emitter/num_updates"] > 0
  assert last["pbt/num_replaced"] == 2
  assert last["emitter/pga/critic_loss"] > 0
  assert "pbt/hyperparams/discount/mean" in last
  elites, _ = reports.read_elites(other("mix"))
  assert elites.emitters == _NAMES
  assert sum(elites.finds.values()) == len(elites.found_by)
  for name in _NAMES:
    assert elites.finds[name] == last[f"emitter/{name}/num_elites"]


@pytest.mark.slow
def test_adapting_shares_are_of_all_that_are_evaluated(other):
  rows = _rows(other("adapting"))[1:]
  for row in rows:
    shares = [row[f"emitter/{name}/share"] for name in ("pga", "ga")]
    assert sum(shares) == pytest.approx(1)
  # Nothing is remembered of agents that were not evaluated.
  sizes = [row["emitter/pga/replay_size"] for row in rows]
  told = [row["emitter/pga/share"] * 60 for row in rows[:-1]]
  assert sizes == pytest.approx([40, 40 + told[0], 40 + sum(told)])


@pytest.mark.slow
@pytest.mark.parametrize(
  ("name", "has_critics"), [("mix", True), ("adapting", False), ("cma", False)]
)
def test_agents_have_critics_only_where_they_train_by_them(
  name, has_critics, other
):
  step = _rows(other(name))[-1]["step"]
  names = _arrays(other(name), step)
  assert any("critic_params" in x for x in names) == has_critics


@pytest.mark.slow
def test_samples_of_cma_have_their_numbers(other):
  row = _rows(other("cma"))[-1]
  assert row["emitter/cma/step_size"] > 0
  assert row["emitter/cma/share"] == row["emitter/ga/share"] == 0.5
  assert row["emitter/cma/num_restarts"] >= 0


@pytest.mark.slow
def test_without_cells_as_many_stay_as_there_are_places(other, tmp_path):
  logdir = other("no cells")
  rows = _rows(logdir)
  assert [row["qd/num_elites"] for row in rows] == [4, 5, 5, 5]
  assert 0 < rows[-1]["qd/coverage"] <= 100 * 5 / 16
  corrected = json.loads((logdir / "corrected.json").read_text())
  # The function has no noise.
  assert corrected["qd/qd_score"] == pytest.approx(rows[-1]["qd/qd_score"])
  elites, _ = reports.read_elites(logdir)
  assert len(elites.cells) == 5
  path = logdir / f"repertoire/{elites.step}.npz"
  assert isinstance(
    map_elites.Repertoire.load(path).tessellation, map_elites.Unstructured
  )
  page = tmp_path / "page.html"
  harness.start("report", f"--logdir={logdir}", f"--output={page}")
  assert "5 of 5 places are occupied" in page.read_text()
