"""Tests of what `train_me_pbt.py` does and leaves behind."""

import json
import re
import shutil
import sys

import jax
import numpy as np
import pytest

from qdrl_haiku import (
  actors,
  environments,
  learners,
  map_elites,
  runs,
)
from qdrl_haiku.environments import point_maze
from qdrl_haiku.storage.directory import RunDirectory
from tests import configs
from tests.launchers import harness

_RUN = "qdrl_haiku.runs.run"
_SHARED = (
  "--learner=td3",
  "--episode_length=10",
  "--hidden_layer_sizes=4",
  "--num_eval_episodes=2",
  "--variation_batch_size=2",
  "--num_initial_genotypes=4",
  "--iso_sigma=0.5",
  "--nouse_tensorboard",
  "--seed=3",
)
_PBT = (
  *_SHARED,
  "--env_name=tests.launchers.test_train_me_pbt:still_maze",
  "--grid_shape=16,8",
  "--gradient_population_size=4",
  "--num_replaced_by_best=1",
  "--num_replaced_by_samples=1",
  "--num_envs=4",
  "--batch_size=8",
  "--min_replay_size=16",
  "--replay_capacity=128",
  "--perturbation_interval=32",
  "--repertoire_interval=2",
  "--reevaluation_interval=2",
)
_GA = (
  *_SHARED, "--env_name=point_maze", "--emitter=ga", "--tessellation=cvt",
  "--num_cells=16", "--num_timesteps=60", "--num_reevaluations=0",
)  # fmt: skip
# What depends on the clock.
_TIMES = {
  "walltime", "training/env_steps_per_second",
  "training/updates_per_second", "training/compile_seconds",
}  # fmt: skip


class _StillMaze(point_maze.PointMaze):
  """Always begins at the same place, so that episodes are all the same."""

  def reset(self, key):
    return super().reset(jax.random.key(0))


def still_maze():
  """A user's environment."""
  return _StillMaze()


@pytest.fixture(scope="module", autouse=True)
def _compiled_once():
  """Lets runs of the same settings share their programs."""
  import qdrl_haiku.runs  # noqa: F401

  module, known = sys.modules[_RUN], {}
  make_programs = module.make_programs
  compile_generation = module.compile_generation

  def make_or_know(setup, mesh, run_key, kept):
    name = (setup.config, setup.controller is None)
    if name not in known:
      programs = make_programs(setup, mesh, run_key)
      known[name] = compile_generation(programs)
    return known[name]

  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(module, "make_programs", make_or_know)
    patch.setattr(module, "compile_generation", lambda programs: programs)
    yield


def _rows(logdir, name="metrics.jsonl"):
  """Rows without what depends on the clock."""
  return [
    {key: value for key, value in row.items() if key not in _TIMES}
    for row in RunDirectory(logdir).rows(name)
  ]


def _arrays(logdir, step):
  """What NumPy alone finds in a repertoire's file."""
  with np.load(logdir / f"repertoire/{step}.npz", allow_pickle=False) as file:
    return dict(file)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
  """The directory of three generations of ME-PBT."""
  logdir = tmp_path_factory.mktemp("logs") / "run"
  harness.start(
    "train_me_pbt", *_PBT, "--num_timesteps=96", f"--logdir={logdir}"
  )
  return logdir


@pytest.fixture(scope="module")
def ga_run(tmp_path_factory):
  """The directory of three generations of MAP-Elites."""
  logdir = tmp_path_factory.mktemp("logs") / "ga"
  harness.start("train_me_pbt", *_GA, f"--logdir={logdir}")
  return logdir


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
  assert names <= rows[0].keys()
  for row in rows:
    assert not names & {name for name, x in row.items() if x is None}
  # Random agents are evaluated, then members collect and all are evaluated.
  steps = [row["total_env_steps"] for row in rows]
  assert steps[0] == 4 * 2 * 10
  assert np.diff(steps).tolist() == [4 * 32 + 6 * 2 * 10] * 3
  for name in ("qd/coverage", "qd/max_fitness"):
    values = [row[name] for row in rows]
    assert values == sorted(values)


def test_the_last_row_agrees_with_the_last_file(run):
  row, arrays = _rows(run)[-1], _arrays(run, 96)
  fitness = arrays["fitness"]
  found = fitness[fitness > -np.inf]
  assert fitness.shape == (128,) and found.size > 1
  assert row["qd/coverage"] == pytest.approx(100 * found.size / 128)
  assert row["qd/max_fitness"] == pytest.approx(float(found.max()))
  offset = point_maze.PointMaze.descriptor.reward_offset * 10
  assert row["qd/qd_score"] == pytest.approx(
    float(np.sum(found + offset)), rel=1e-5
  )


def test_numpy_alone_reads_a_repertoire(run):
  arrays = _arrays(run, 96)
  cells = np.flatnonzero(arrays["fitness"] > -np.inf)
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
  assert record["config"]["hidden_layer_sizes"] == [4]


def test_a_stored_policy_does_again_what_it_did(run):
  path = run / "repertoire/96.npz"
  repertoire = map_elites.Repertoire.load(path)
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
  *_, before, last = _rows(run)
  for name in ("qd_score", "coverage", "max_fitness"):
    assert last[f"qd/lost_{name}"] == pytest.approx(0, abs=1e-3)
    assert last[f"qd/corrected_{name}"] == pytest.approx(
      last[f"qd/{name}"], rel=1e-4
    )
  for name in ("qd/fitness_spread", "qd/descriptor_spread"):
    assert last[name] == pytest.approx(0, abs=1e-3)
  num_elites = round(last["qd/coverage"] * 128 / 100)
  assert last["qd/reevaluation_env_steps"] == num_elites * 2 * 10
  # Nobody looked after the first generation.
  rows = _rows(run)
  assert [row["qd/lost_coverage"] is None for row in rows] == [
    True, True, False, False
  ]
  assert before["qd/reevaluation_env_steps"] > 0


def test_where_nothing_is_random_corrected_metrics_are_the_last(run):
  corrected = json.loads((run / "corrected.json").read_text())
  assert corrected.pop("num_reevaluations") == 2
  assert corrected.keys() == {
    "qd/qd_score", "qd/coverage", "qd/max_fitness", "qd/num_outside"
  }
  row = _rows(run)[-1]
  for name, value in corrected.items():
    if name != "qd/num_outside":
      assert value == pytest.approx(row[name], rel=1e-4), name


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
  members = _rows(run, "pbt_members.jsonl")
  assert len(members) == 3 * 4


@pytest.mark.parametrize(
  ("flags", "expected"),
  [
    (["train_me_pbt", "--env_name=point_maze"], "fan_in"),
    (["train_me_pbt", *_GA, "--learner=sac"], "fan_in"),
    (["train_me_pbt", *_PBT, "--policy_final_init=small"], "small"),
    (["train_pbt", "--env_name=point_maze"], "small"),
  ],
  ids=["me_pbt", "ga", "given", "pbt"],
)
def test_policies_of_a_repertoire_start_different(
  flags, expected, monkeypatch, tmp_path
):
  begun = []

  def begin(*args):
    begun.append(args)
    return {}, None

  monkeypatch.setattr(runs, "run", begin)
  harness.start(*flags, f"--logdir={tmp_path / 'run'}")
  ((setup, *_),) = begun
  params = jax.jit(setup.learner.init)(jax.random.key(0)).policy_params
  are_small = np.abs(params["policy/output"]["w"]).max() <= 3e-3
  assert are_small == (expected == "small")


@pytest.mark.slow
def test_two_parts_equal_one_run(run, tmp_path):
  for steps, resume in ((64, "--noresume"), (96, "--resume")):
    harness.start(
      "train_me_pbt", *_PBT, resume,
      f"--num_timesteps={steps}", f"--logdir={tmp_path / 'parts'}",
    )  # fmt: skip
  for name in ("metrics.jsonl", "pbt_lineage.jsonl", "pbt_members.jsonl"):
    assert _rows(tmp_path / "parts", name) == _rows(run, name), name
  actual, expected = (_arrays(x, 96) for x in (tmp_path / "parts", run))
  assert actual.keys() == expected.keys()
  for name, x in expected.items():
    if name != "config":
      assert actual[name].tobytes() == x.tobytes(), name
  assert (tmp_path / "parts" / "corrected.json").read_text() == (
    run / "corrected.json"
  ).read_text()


@pytest.mark.slow
def test_a_run_of_so_many_generations_can_be_made_longer(run, tmp_path, capsys):
  logdir = tmp_path / "generations"
  for number, resume in ((2, "--noresume"), (3, "--resume")):
    outcome = harness.run(
      capsys, "train_me_pbt", *_PBT, f"--num_generations={number}", resume,
      f"--logdir={logdir}",
    )  # fmt: skip
    assert outcome.code == 0, outcome.err
  assert _rows(logdir) == _rows(run)


def test_a_run_begins_with_the_agents_of_another(run, tmp_path):
  logdir = tmp_path / "warm"
  harness.start(
    "train_me_pbt", *_PBT, "--num_timesteps=32", f"--warm_start={run}",
    f"--logdir={logdir}",
  )  # fmt: skip
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


def test_elites_of_a_run_that_is_over_can_be_evaluated_again(run, tmp_path):
  logdir = tmp_path / "run"
  shutil.copytree(run, logdir)
  rows = (logdir / "metrics.jsonl").read_text()
  harness.start(
    "train_me_pbt", *_PBT, "--num_timesteps=96", "--num_reevaluations=3",
    "--resume", f"--logdir={logdir}",
  )  # fmt: skip
  corrected = json.loads((logdir / "corrected.json").read_text())
  assert corrected["num_reevaluations"] == 3
  with np.load(logdir / "reevaluation" / "96.npz") as file:
    assert file["fitness"].shape[1] == 3
  assert (logdir / "metrics.jsonl").read_text() == rows


def test_a_resumed_run_does_not_look_for_centroids_again(
  ga_run, tmp_path, monkeypatch
):
  logdir = tmp_path / "run"
  shutil.copytree(ga_run, logdir)

  def fail(*_):
    raise AssertionError("They are in the run's directory.")

  monkeypatch.setattr(map_elites, "cvt", fail)
  harness.start("train_me_pbt", *_GA, "--resume", f"--logdir={logdir}")


def test_map_elites_alone_goes_on(ga_run, tmp_path):
  logdir = tmp_path / "parts"
  for flags in (("--num_timesteps=20",), ("--resume",)):
    harness.start("train_me_pbt", *_GA, *flags, f"--logdir={logdir}")
  assert _rows(logdir) == _rows(ga_run)
  actual, expected = _arrays(logdir, 60), _arrays(ga_run, 60)
  for name in expected.keys() - {"config"}:
    assert actual[name].tobytes() == expected[name].tobytes(), name


# The flags, and what the message must have: flag, value, and what to do.
_REFUSED = [
  ("--env_name=inverted_pendulum", "pendulum has no state descr.*give"),
  ("--grid_shape=32", "grid_shape=32 .*x, y; give 2 .*32,32"),
  ("--grid_shape=8,8,8", "grid_shape=8,8,8 .*give 2 numbers"),
  ("--grid_shape=8,x", "--grid_shape=8,x is no list of integers"),
  ("--grid_shape=8,0", "grid_shape must be at least 1, got 0"),
  ("--grid_shape=8,-1", "grid_shape must be at least 1, got -1"),
  ("--tessellation=cvt --num_cells=0", "num_cells must be at least 1, got 0"),
  ("--num_cells=16", "--num_cells=16 has no effect: --tessellation=grid"),
  ("--grid_shape=99999,99999", "makes 9999800001 cells"),
  (
    "--grid_shape=99999,99998",
    "makes 9999700002 cells; use at most 1073741824",
  ),
  (
    "--tessellation=none --num_cells=2147483647 --emitter=ga",
    "num_cells=2147483647 is too large; use an integer of at most 1048576",
  ),
  (
    "--tessellation=cvt --num_cells=2147483647",
    "num_cells=2147483647 takes k-means, .* too long; use at most 50000",
  ),
  (
    "--tessellation=cvt --num_cells=2000000",
    "num_cells=2000000 takes k-means, .* too long; use at most 50000",
  ),
  (
    "--adding=adaptive --resampling_depth=2147483647",
    "resampling depth 2147483647 times 1024 cells is more than",
  ),
  (
    "--variation_batch_size=100000000",
    "evaluation would take the most, .*: lower .*variation_batch_size",
  ),
  (
    "--num_initial_genotypes=100000000",
    "100000000 times num_eval_episodes 8 times .* at most 2147483647; lower",
  ),
  ("--line_sigma=1e-50", "line_sigma must be 0 or of a magnitude from 1e-30"),
  ("--qd_offset=nan", "qd_offset must be at least .* got nan"),
  ("--policy_final_init=fanin", "policy_final_init='fanin' .*mean 'fan_in'"),
  (
    "--num_initial_genotypes=99999999999",
    "num_initial_genotypes must be at most .*99999999999",
  ),
  (
    "--variation_batch_size=99999999999",
    "variation_batch_size must be at most .*99999999999",
  ),
  (
    "--num_generations=99999999999",
    "num_generations must be at most .*99999999999",
  ),
  (
    "--gradient_population_size=99999999999",
    "gradient_population_size must be at most .*99999999999",
  ),
  ("--tessellation=cvtt", "tessellation='cvtt'.*'cvt'"),
  ("--emitter=gaa", "emitter=gaa: gaa is unknown.*'ga'"),
  ("--learner=diayn", "learner=diayn.*sac or td3"),
  (
    "--variation_batch_size=-1",
    "variation_batch_size must be at least 0, got -1",
  ),
  (
    "--num_initial_genotypes=0",
    "num_initial_genotypes must be at least 1, got 0",
  ),
  ("--iso_sigma=-1", "iso_sigma must be at least 0, got -1.0"),
  ("--line_sigma=nan", "line_sigma must be at least 0, got nan"),
  ("--iso_sigma=inf", "iso_sigma must be at most 1e.30, got inf"),
  (
    "--num_replaced_by_samples=-1",
    "num_replaced_by_samples must be at least 0, got -1",
  ),
  ("--num_reevaluations=-1", "num_reevaluations must be .* got -1"),
  ("--reevaluation_interval=0", "reevaluation_interval must be .* got 0"),
  (
    "--num_reevaluations=0 --reevaluation_interval=2",
    "reevaluation_interval=2 has no effect: num_reevaluations=0",
  ),
  ("--adding=twice", "adding='twice' is unknown; give .*once, adaptive"),
  ("--resampling_depth=2", "--resampling_depth=2 has no effect: --adding=once"),
  ("--adding=adaptive --resampling_share=1", "share must be .* got 1.0"),
  ("--adding=adaptive --resampling_depth=0", "depth must be .* got 0"),
  (
    "--adding=adaptive --shard_repertoire",
    "shard_repertoire: .*adding=adaptive.*leave one of them out",
  ),
  ("--repertoire_interval=0", "repertoire_interval must be .* got 0"),
  ("--num_generations=0", "num_generations must be at least 1, got 0"),
  (
    "--num_generations=2 --num_timesteps=2000",
    "--num_timesteps=2000 has no effect.*--num_generations.*leave",
  ),
  (
    "--gradient_population_size=0",
    r"(?<!gradient_)gradient_population_size must be .* got 0",
  ),
  (
    "--num_replaced_by_best=-1",
    "num_replaced_by_best must be at least 0, got -1",
  ),
  (
    "--gradient_population_size=4 --num_replaced_by_best=4",
    "num_parents=1 and num_replaced_by_best=4 are more than "
    "gradient_population_size=4",
  ),
  (
    "--num_parents=9",
    "num_parents=9 and num_replaced_by_best=2 .*gradient_population_size=10",
  ),
  (
    "--num_replaced_by_best=0 --num_parents=2",
    "num_parents=2 .*num_replaced_by_best",
  ),
  (
    "--gradient_population_size=4 --num_replaced_by_samples=4",
    "num_replaced_by_samples=4 .*(?<!_)gradient_population_size=4",
  ),
  ("--emitter=ga --variation_batch_size=0", "variation_batch_size=0 leaves"),
  *(
    (
      f"--emitter=ga {flag}",
      f"{flag.split('=')[0]}=.* has no effect: with --emitter=ga no agent",
    )
    for flag in (
      "--batch_size=8", "--grad_updates_per_step=2",
      "--gradient_population_size=5", "--min_replay_size=9", "--num_envs=4",
      "--num_parents=1", "--num_replaced_by_best=1",
      "--num_replaced_by_samples=1", "--on_divergence=stop",
      "--perturbation_interval=32", "--random_warm_up=false",
      "--replay_capacity=2000", "--checkpoint_replay=false",
    )
  ),
  (
    "--tessellation=cvt --grid_shape=8,8",
    "--grid_shape=.* has no effect: --tessellation=cvt",
  ),
  *(
    (
      f"--variation_batch_size=0 {flag}=0.1",
      f"{flag}=0.1 has no effect: --variation_batch_size=0 varies nothing",
    )
    for flag in ("--iso_sigma", "--line_sigma")
  ),
  (
    "--emitter=ga --num_generations=0",
    "num_generations must be at least 1, got 0",
  ),
  (
    "--emitter=ga --num_generations=2 --num_timesteps=2000",
    "--num_timesteps=2000 has no effect.*--num_generations.*leave",
  ),
]


@pytest.fixture
def refuse(capsys, monkeypatch, tmp_path):
  """Runs the launcher, which must stop before it compiles anything."""

  def compile_generation(*_):
    raise AssertionError("It wasn't refused.")

  monkeypatch.chdir(tmp_path)
  monkeypatch.setattr(
    sys.modules[_RUN], "compile_generation", compile_generation
  )

  def run(*flags):
    defaults = ["--logdir=run"]
    if not any(flag.startswith("--env_name") for flag in flags):
      defaults.append("--env_name=point_maze")
    return harness.run(capsys, "train_me_pbt", *defaults, *flags)

  yield run
  assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
  ("flags", "message"), _REFUSED, ids=[flags for flags, _ in _REFUSED]
)
def test_nonsense_is_refused_in_one_line_and_nothing_is_written(
  refuse, flags, message
):
  outcome = refuse(*flags.split())
  assert outcome.code == 2
  assert outcome.err.count("\n") == 1
  assert "gradient_gradient" not in outcome.err
  assert re.search(message, outcome.err), outcome.err


def test_map_elites_alone_refuses_agents_to_begin_with(refuse, run):
  outcome = refuse(*_GA, f"--warm_start={run}")
  assert outcome.code == 2
  assert re.search("warm_start", outcome.err), outcome.err


def test_map_elites_alone_has_no_members_to_look_at(ga_run, capsys):
  outcome = harness.run(
    capsys, "evaluate", f"--logdir={ga_run}", "--member=0"
  )
  assert outcome.code == 2 and outcome.err.count("\n") == 1
  assert re.search("--member=0, but .*--emitter=ga; leave", outcome.err)


@pytest.mark.parametrize("name", ["run", "ga_run"])
def test_any_elite_can_be_looked_at(name, request, capsys):
  """In the maze where nothing is random it does again what it did."""
  logdir = request.getfixturevalue(name)
  step = max(int(path.stem) for path in (logdir / "repertoire").iterdir())
  arrays = _arrays(logdir, step)
  cell = arrays["cells"][-1]
  stored = {
    "mean": arrays["fitness"][cell],
    "descriptor/x": arrays["descriptors"][cell, 0],
    "descriptor/y": arrays["descriptors"][cell, 1],
  }
  outcome = harness.run(
    capsys, "evaluate", f"--logdir={logdir}", f"--cell={cell}"
  )
  assert outcome.code == 0, outcome.err
  found = json.loads(outcome.out.splitlines()[-1])
  assert found["cell"] == cell
  assert found["cell_return"] == arrays["fitness"][cell]
  if name == "run":
    assert {key: found[key] for key in stored} == pytest.approx(
      stored, rel=1e-4, abs=1e-4
    )


def test_a_run_of_an_older_version_can_be_looked_at(ga_run, tmp_path, capsys):
  """Its first agents had noise, and nothing said how last layers start."""
  logdir = tmp_path / "old"
  shutil.copytree(ga_run, logdir)
  settings = json.loads((logdir / "config.json").read_text())
  del settings["policy_final_init"]
  (logdir / "config.json").write_text(
    json.dumps(settings | {"initial_sigma": 0.1})
  )
  outcome = harness.run(capsys, "evaluate", f"--logdir={logdir}")
  assert outcome.code == 0, outcome.err
  outcome = harness.run(
    capsys,
    "report",
    f"--logdir={logdir}",
    f"--output={tmp_path / 'page.html'}",
    "--rollouts=1",
  )
  assert outcome.code == 0, outcome.err
  # It goes on only as it began.
  outcome = harness.run(
    capsys, "train_me_pbt", *_GA, "--resume", f"--logdir={logdir}"
  )
  assert outcome.code == 2
  assert "--initial_sigma was 0.1 and is None" in outcome.err


def test_map_elites_alone_does_not_mind_how_many_would_collect(
  capsys, monkeypatch, tmp_path
):
  class _StoppedError(Exception):
    """Raised where a run would compile."""

  def stop(*_):
    raise _StoppedError

  monkeypatch.chdir(tmp_path)
  monkeypatch.setattr(sys.modules[_RUN], "_train", stop)
  try:
    outcome = harness.run(capsys, "train_me_pbt", *_GA, "--num_envs=48")
  except _StoppedError:
    return
  assert re.search("--num_envs=48 has no effect", outcome.err), outcome.err
