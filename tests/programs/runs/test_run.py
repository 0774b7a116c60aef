"""Tests of whole runs: what they refuse, count and write."""

import math
from typing import NamedTuple

import jax
import numpy as np
import pytest

from qdrl_haiku import distributed, map_elites, platform
from qdrl_haiku.cpu.cores import Cores
from qdrl_haiku.programs import artifacts, runs
from qdrl_haiku.programs.drawing import heatmaps
from qdrl_haiku.programs.runs import validation
from qdrl_haiku.programs.runs.compilation import Program
from qdrl_haiku.programs.runs.run import _run_key
from tests import events
from tests.programs.runs import common as runs_common
from tests.programs.runs.common import SETUP, rows, run
from tests.training import common


class _Compiled(Exception):
  """A run has gone so far that it compiles."""


def _programs(*args):
  raise _Compiled


@pytest.mark.parametrize(("generations", "setup", "config", "message"), [
  (0.5, SETUP, {}, "num_timesteps=8 must be a multiple of the 16.*: 16"),
  (1, SETUP, {"repertoire_interval": 3}, "=3 has no effect: .* repertoire"),
  (1, SETUP, {"picture_interval": 2}, "=2 has no effect: log_to= .*board"),
  (1, common.setup(), {"picture_interval": 2, "log_to": ("tensorboard",)},
   "picture_interval=2 has no effect: without a controller"),
  (1, SETUP, {"film": True}, "film=True: nothing of this .* can be drawn"),
  (1, common.repertoire_setup()._replace(evaluate=lambda *_: None), {},
   "evaluate has no effect with map_elites")])
def test_nonsense_is_refused_before_anything_is_compiled_or_written(
  generations, setup, config, message, tmp_path
):
  with pytest.raises(ValueError, match=message):
    run(tmp_path / "run", generations, setup, programs=_programs, **config)
  assert not (tmp_path / "run").exists()


def test_a_dry_run_says_what_it_needs_and_writes_nothing(tmp_path, capsys):
  assert run(tmp_path / "run", 1, dry_run=True) == {}
  out = capsys.readouterr().out
  assert "memory needed" in out and "devices used" in out
  assert "writing to" not in out
  assert not (tmp_path / "run").exists()


def test_trackers_get_pictures_and_a_film_but_none_that_fails(
  tmp_path, monkeypatch, caplog
):
  logdir, config = tmp_path / "run", {
    "setup": common.repertoire_setup(), "log_to": ("tensorboard",),
    "picture_interval": 2, "film": True, "num_reevaluations": 0}
  run(logdir, 3, **config)
  found = {
    *((f"plots/{x}", step) for x in ("lineage", "repertoire")
      for step in (32, 48)), ("plots/best", 48)}
  shown = events.pictures(logdir)
  assert shown.keys() == found
  assert shown["plots/best", 48].n_frames > 1
  monkeypatch.setattr(heatmaps, "heatmap", lambda *_: [][0])
  run(logdir, 4, resume=True, **config)
  assert events.pictures(logdir).keys() == found | {
    ("plots/lineage", 64), ("plots/best", 64)}
  (message,) = [x.getMessage() for x in caplog.records]
  assert message == "no picture of the repertoire: list index out of range"


def test_a_run_makes_and_tries_an_emitter_once(tmp_path):
  made = []

  def make(setup):
    made.append(map_elites.genetic_emitter(
      common.vary, setup.qd.variation_batch_size))
    return made[-1]

  setup = common.repertoire_setup(with_pbt=False, emitter=make)
  run(tmp_path / "run", 1, setup, dry_run=True)
  assert len(made) == 1


def test_a_dry_run_refuses_the_directory_that_the_run_would(trained, tmp_path):
  with pytest.raises(ValueError, match="is not empty.*--resume"):
    run(trained, 1, dry_run=True)
  with pytest.raises(ValueError, match="--seed was 0 and is None"):
    run(trained, 9, resume=True, dry_run=True, settings={})
  (tmp_path / "file").touch()
  with pytest.raises(ValueError, match="can't be written .Not a directory"):
    run(tmp_path / "file", 1, dry_run=True)


def test_cells_and_processes_may_not_be_able_to_share_a_mesh(monkeypatch):
  monkeypatch.setattr(jax, "device_count", lambda: 5)
  monkeypatch.delenv("JAX_NUM_CPU_DEVICES", raising=False)
  monkeypatch.setattr(platform, "usable_cores", lambda: Cores(5, ""))
  mesh = jax.sharding.AbstractMesh((4,), ("population",))
  setup = common.repertoire_setup(mesh=mesh, shard_repertoire=True)
  validation.check_valid_mesh(setup)
  described = validation.describe_valid_mesh(setup, True)
  assert described.endswith("4 of 5; 35 or 40 cells would use all")
  monkeypatch.setattr(platform, "usable_cores", lambda: Cores(5, "why"))
  assert "of 5 (why); 35" in validation.describe_valid_mesh(setup, True)
  monkeypatch.setenv("JAX_NUM_CPU_DEVICES", "5")
  described = validation.describe_valid_mesh(setup, True)
  assert "of 5 (JAX_NUM_CPU_DEVICES=5); 35" in described
  setup = common.repertoire_setup(
    mesh=mesh, shape=(5, 5), shard_repertoire=True)
  with pytest.raises(ValueError, match="4 devices can't share 25 .* 24 or 28"):
    validation.check_valid_mesh(setup)
  monkeypatch.setattr(jax, "process_count", lambda: 2)
  with pytest.raises(ValueError, match="mesh has 4 of the 5 .*leave the mesh"):
    validation.check_valid_mesh(setup)


def test_the_best_agent_ever_is_kept_apart(trained):
  members = rows(trained, "pbt_members.jsonl")
  best = max(members, key=lambda row: row["return"])
  assert max(runs_common.steps(trained / "best")) == best["step"]
  state, record = artifacts.read_best(SETUP.learner, str(trained))
  # With which it could be made again.
  assert record["member"] == best["member"]
  assert record["hyperparams"] == best["hyperparams"]
  assert record["return"] == pytest.approx(best["return"])
  # The return of five steps: five times the one reward of its greedy action.
  action = np.clip(np.asarray(state.point), -1, 1)
  expected = -5 * np.sum(np.square(action - common.TARGET))
  assert record["return"] == pytest.approx(expected, rel=1e-5)


def test_hyperparameters_follow_the_lineage(trained):
  lineage = rows(trained, "pbt_lineage.jsonl")
  first = [row for row in lineage if row["generation"] == 0]
  assert [row["child"] for row in first] == [0, 1, 2, 3]
  assert {row["operator"] for row in first} == {"init"}
  assert len(lineage) > len(first)
  for row in rows(trained):
    children = [r for r in lineage if r["generation"] == row["generation"]]
    assert len(children) == row["pbt/num_replaced"]
  for i in range(4):  # Which says whether what members had follows from it.
    schedule = artifacts.read_schedule(str(trained), i)
    assert schedule.num_generations == 4
  members = [x["hyperparams"] for x in rows(trained, "pbt_members.jsonl")]
  assert members[:4] == [row["new_hyperparams"] for row in first]


class _Breaks(NamedTuple):
  """A program that trains, after which no member is finite."""

  program: Program

  def __call__(self, *args):
    state, trained = self.program(*args)
    learner = state.members.learner
    broken = learner._replace(point=learner.point * math.nan)
    return common.changed(state, learner=broken), trained

  def trace(self):
    self.program.trace()

  def compile(self):
    self.program.compile()


def _breaking(*args):
  made = runs_common.compiled_once(*args)
  return made._replace(train=_Breaks(made.train))


def test_a_diverged_population_begins_anew_or_ends(tmp_path, capsys):
  # Each generation of the run is lost.
  with pytest.raises(runs.EndedDiverged, match="last 2 of 2 generations"):
    run(tmp_path / "run", 2, programs=_breaking)
  assert "All members have diverged" in capsys.readouterr().out
  found = rows(tmp_path / "run")
  assert [row["pbt/num_nonfinite"] for row in found] == [4, 4]
  assert found[0]["pbt/best_return"] is None
  lineage = rows(tmp_path / "run", "pbt_lineage.jsonl")
  assert [row["operator"] for row in lineage[4:8]] == ["reinitialise"] * 4
  # They go on with what was drawn, not with what broke them.
  members = rows(tmp_path / "run", "pbt_members.jsonl")
  for row, before, after in zip(
    lineage[4:8], members[:4], members[4:], strict=True
  ):
    assert row["old_hyperparams"] == before["hyperparams"]
    assert row["new_hyperparams"] == after["hyperparams"]
    assert before["hyperparams"] != after["hyperparams"]
  assert not list((tmp_path / "run" / "best").iterdir())
  with pytest.raises(runs.Diverged, match="in generation 1; lower"):
    run(tmp_path / "end", 2, programs=_breaking, on_divergence="stop")


def test_each_seed_has_the_key_that_it_has_alone():
  mesh = distributed.population_mesh(1, jax.devices()[:1])
  seeds = (0, 7, 2**32 - 1)
  several = jax.random.key_data(_run_key(seeds, mesh))
  for found, seed in zip(several, seeds, strict=True):
    for key in (jax.random.key(seed), _run_key([seed], mesh)):
      np.testing.assert_array_equal(found, jax.random.key_data(key))
