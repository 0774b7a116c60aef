"""Tests of whole runs: what they write, and how they go on."""

import contextlib
import dataclasses
import errno
import json
import math
import pathlib
import shutil
import sys

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest

from qdrl_haiku import (
  artifacts,
  controllers,
  distributed,
  map_elites,
  runs,
  training,
)
from qdrl_haiku.reports import pictures
from qdrl_haiku.runs import checkpoint_timing, records
from qdrl_haiku.runs import interruption as interruption_lib
from qdrl_haiku.runs import resume as resume_lib
from qdrl_haiku.runs.warm_start import warm_start
from qdrl_haiku.storage import checkpoints as checkpoints_lib
from qdrl_haiku.storage.directory import RunDirectory
from qdrl_haiku.training import illumination
from qdrl_haiku.training import reports as reports_lib
from tests.training import common, test_illumination

_RUN = sys.modules["qdrl_haiku.runs.run"]
_SETUP = common.setup(
  controllers.pbt(controllers.PBTConfig(), common.SPACE), fitness_window=2
)
_INTERVAL = _SETUP.config.perturbation_interval
_SETTINGS = {"seed": 0, "num_envs": 2}
# What depends on the clock.
_TIMES = {
  "walltime", "training/env_steps_per_second",
  "training/updates_per_second", "training/compile_seconds",
}  # fmt: skip
_FILES = ("metrics.jsonl", "pbt_lineage.jsonl", "pbt_members.jsonl")


class _Killed(Exception):
  """Ends a run where a kill would."""


@pytest.fixture(scope="module", autouse=True)
def _compiled_once():
  """Lets the runs of this module share their programs, and draw nothing."""
  make_programs, known = _RUN.make_programs, {}

  def make_or_know(setup, mesh, run_key, cache):
    name = (setup.config, id(setup.learner.update), run_key.shape)
    if name not in known:
      programs = make_programs(setup, mesh, run_key, cache)
      known[name] = _RUN.compile_generation(programs)
    return known[name]

  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(_RUN, "make_programs", make_or_know)
    patch.setattr(_RUN, "compile_generation", lambda programs: programs)
    patch.setattr(pictures, "plot_run", lambda path: None)
    yield


def _run(logdir, generations, setup=_SETUP, settings=_SETTINGS, **config):
  config = {"use_tensorboard": False, "checkpoint_interval": 1} | config
  row, _ = runs.run(
    setup,
    runs.RunConfig(
      logdir=str(logdir), num_timesteps=generations * _INTERVAL, **config
    ),
    settings | {"num_timesteps": generations * _INTERVAL},
    may_change=["num_timesteps"],
  )
  return row


def _killed_after(generation, *args, **kwargs):
  """Runs until a generation is recorded, and checkpointed if it's due."""
  show = _RUN.Progress.show

  def show_and_die(self, row, returns):
    show(self, row, returns)
    if row["generation"] == generation:
      raise _Killed

  with pytest.MonkeyPatch.context() as patch, pytest.raises(_Killed):
    patch.setattr(_RUN.Progress, "show", show_and_die)
    _run(*args, **kwargs)


def _rows(logdir, name):
  """Rows without what depends on the clock."""
  return [
    {key: value for key, value in row.items() if key not in _TIMES}
    for row in RunDirectory(logdir).rows(name)
  ]


def _checkpoint(logdir):
  """Everything in the latest checkpoint, and its record."""
  checkpoints = checkpoints_lib.Checkpoints(logdir / "checkpoints")
  step = checkpoints.steps()[0]
  like = resume_lib.to_trees(
    runs.RunConfig(logdir=str(logdir)),
    training.init_population(_SETUP, jax.random.key(0)),
  )
  trees = checkpoints.restore(step, like)
  record = checkpoints.record(step)
  checkpoints.close()
  return step, trees, {k: v for k, v in record.items() if k != "walltime"}


def _assert_same_run(actual, expected):
  for name in _FILES:
    assert _rows(actual, name) == _rows(expected, name), name
  assert (actual / "metrics.csv").read_text().count("\n") == 1 + len(
    _rows(actual, "metrics.jsonl")
  )
  step, trees, record = _checkpoint(actual)
  expected_step, expected_trees, expected_record = _checkpoint(expected)
  assert (step, record) == (expected_step, expected_record)
  assert trees["population"].recent_fitness.shape == (4, 2)
  common.assert_bits_equal(trees, expected_trees)
  state, record = artifacts.read_best(_SETUP.learner, str(actual))
  best, expected_record = artifacts.read_best(_SETUP.learner, str(expected))
  assert record == expected_record
  common.assert_bits_equal(state, best)


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
  """Where four generations were trained at a stretch."""
  logdir = tmp_path_factory.mktemp("runs") / "straight"
  _run(logdir, 4)
  return logdir


def test_a_run_in_two_parts_equals_one_at_a_stretch(straight, tmp_path):
  _run(tmp_path / "parts", 2)
  _run(tmp_path / "parts", 4, resume=True)
  _assert_same_run(tmp_path / "parts", straight)


def test_a_run_in_a_directory_of_an_odd_name_goes_on_and_is_read(
  straight, tmp_path
):
  logdir = tmp_path / "lr=[1e-3]" / "a\\b"
  _run(logdir, 2)
  _run(logdir, 4, resume=True)
  _assert_same_run(logdir, straight)
  _, record = artifacts.read_agents(_SETUP.learner, str(logdir))
  assert record["generation"] == 4
  _run(tmp_path / "[warm]", 1, warm_start=str(logdir))


def test_what_follows_the_last_checkpoint_is_done_again_not_twice(
  straight, tmp_path
):
  logdir = tmp_path / "killed"
  _killed_after(3, logdir, 4, checkpoint_interval=2)
  assert len(_rows(logdir, "metrics.jsonl")) == 3
  with (logdir / "metrics.jsonl").open("a") as file:
    file.write('{"generation": 4, "eval')  # Cut short.
  _run(logdir, 4, checkpoint_interval=2, resume=True)
  _assert_same_run(logdir, straight)


@pytest.fixture(scope="module")
def three(tmp_path_factory):
  """Where three generations were trained, for tests to go on from."""
  logdir = tmp_path_factory.mktemp("runs") / "three"
  _run(logdir, 3)
  return logdir


@pytest.fixture(scope="module")
def longer(tmp_path_factory):
  """Where six generations were trained at a stretch."""
  logdir = tmp_path_factory.mktemp("runs") / "longer"
  _run(logdir, 6)
  return logdir


@pytest.mark.parametrize(
  ("interval", "generation"),
  [(1, 1), (1, 5), *((x, g) for x in (3, 5) for g in range(1, 7))],
)
def test_a_run_killed_after_any_generation_ends_as_if_it_had_not_been(
  interval, generation, longer, tmp_path
):
  logdir = tmp_path / "killed"
  _killed_after(generation, logdir, 6, checkpoint_interval=interval)
  _run(logdir, 6, checkpoint_interval=interval, resume=True)
  _assert_same_run(logdir, longer)


def test_a_run_killed_after_each_generation_ends_as_if_it_had_not_been(
  longer, tmp_path
):
  logdir = tmp_path / "killed"
  for generation in range(1, 7):
    _killed_after(
      generation, logdir, 6, checkpoint_interval=3, resume=generation > 1
    )
  _run(logdir, 6, checkpoint_interval=3, resume=True)
  _assert_same_run(logdir, longer)


def _steps(folder):
  return sorted(int(path.name) for path in folder.iterdir())


def test_a_kill_between_the_best_agent_and_its_checkpoint_is_survived(
  longer, tmp_path, monkeypatch
):
  logdir = tmp_path / "killed"
  save = checkpoints_lib.Checkpoints.save

  def save_and_die(self, step, trees, record):
    save(self, step, trees, record)
    if "learner" in trees and len(trees) == 1 and step == 64:
      raise _Killed

  with monkeypatch.context() as patch, pytest.raises(_Killed):
    patch.setattr(checkpoints_lib.Checkpoints, "save", save_and_die)
    _run(logdir, 6)
  assert max(_steps(logdir / "best")) == 64
  _run(logdir, 6, resume=True)
  _assert_same_run(logdir, longer)


def _begun(logdir, monkeypatch):
  """Resumes a run, and kills it before its next generation."""

  def die(*args):
    raise _Killed

  with monkeypatch.context() as patch, pytest.raises(_Killed):
    patch.setattr(_RUN, "MetricsWriter", die)
    _run(logdir, 6, resume=True)


def test_whichever_checkpoint_is_taken_has_its_best_agent(
  longer, tmp_path, monkeypatch
):
  logdir = tmp_path / "run"
  _run(logdir, 5, max_checkpoints=3)
  checkpoints = checkpoints_lib.Checkpoints(logdir / "checkpoints")
  for step in (80, 64, 48):
    expected = checkpoints.record(step)["best"]
    _begun(logdir, monkeypatch)
    # That what was read last is what the rows say, and no more.
    assert _rows(logdir, "metrics.jsonl")[-1]["step"] == step
    assert artifacts.read_best(_SETUP.learner, str(logdir))[1] == expected
    _damage(logdir, step)


def test_best_agents_are_kept_as_long_as_a_checkpoint_needs_them():
  # The latest of all, and of what was the best in each checkpoint.
  assert resume_lib.needed([16, 48, 64, 112], [48, 96]) == {48, 64, 112}
  assert resume_lib.needed([16, 48], [80, 96]) == {48}
  assert resume_lib.needed([32, 48], [16]) == {48}
  assert resume_lib.needed([16, 48], []) == {48}
  assert resume_lib.needed([], [16]) == set()


def test_no_more_best_agents_are_kept_than_are_needed(longer):
  assert _steps(longer / "checkpoints") == [80, 96]
  checkpoints = checkpoints_lib.Checkpoints(longer / "checkpoints")
  assert set(_steps(longer / "best")) == {
    checkpoints.record(step)["best"]["step"] for step in (80, 96)
  }


@pytest.mark.parametrize("seldom", [True, False])
def test_how_often_a_run_can_afford_checkpoints_changes_nothing_else(
  seldom, straight, tmp_path, monkeypatch, capsys
):
  monkeypatch.setattr(
    checkpoint_timing, "is_affordable", lambda *seconds: not seldom
  )
  logdir = tmp_path / "run"
  _run(logdir, 4, checkpoint_interval=None, max_checkpoints=4)
  # The first one, the affordable ones, the last one.
  expected = [16, 64] if seldom else [16, 32, 48, 64]
  assert _steps(logdir / "checkpoints") == expected
  _assert_same_run(logdir, straight)
  assert capsys.readouterr().out.count("a kill loses at most") == 1


@contextlib.contextmanager
def _signalled_in(generation):
  """A signal comes while a generation is trained."""
  show = _RUN.Progress.show
  requested = []

  @contextlib.contextmanager
  def interruptible():
    interruption = interruption_lib.Interruption()
    requested.append(interruption.request)
    yield interruption

  def show_and_signal(self, row, returns):
    show(self, row, returns)
    if row["generation"] == generation - 1:
      requested[-1]()

  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(_RUN, "interruptible", interruptible)
    patch.setattr(_RUN.Progress, "show", show_and_signal)
    yield


def test_a_signal_ends_a_run_after_its_generation_with_a_checkpoint(
  straight, tmp_path
):
  logdir = tmp_path / "run"
  with _signalled_in(3), pytest.raises(runs.Interrupted, match="ion 3$"):
    _run(logdir, 4, checkpoint_interval=4)
  assert [path.name for path in (logdir / "checkpoints").iterdir()] == ["48"]
  _run(logdir, 4, checkpoint_interval=4, resume=True)
  _assert_same_run(logdir, straight)


def test_a_signal_in_the_last_generation_changes_nothing(straight, tmp_path):
  with _signalled_in(4):
    assert _run(tmp_path / "run", 4)["generation"] == 4
  _assert_same_run(tmp_path / "run", straight)


def _damage(logdir, step):
  (file,) = (logdir / "checkpoints" / str(step) / "record").glob("metadata")
  file.write_text(file.read_text()[:-5])


def _flip(logdir, step):
  folder = logdir / "checkpoints" / str(step) / "learner" / "d"
  file = max(folder.iterdir(), key=lambda path: path.stat().st_size)
  content = bytearray(file.read_bytes())
  content[len(content) // 2] ^= 1
  file.write_bytes(content)


def _lose(logdir, step):
  (logdir / "checkpoints" / str(step) / "learner" / "_METADATA").unlink()


@pytest.mark.parametrize("harm", [_damage, _flip, _lose])
def test_a_damaged_checkpoint_is_set_aside_for_the_one_before(
  harm, three, straight, tmp_path
):
  logdir = tmp_path / "run"
  shutil.copytree(three, logdir)
  harm(logdir, 48)
  _run(logdir, 4, resume=True)
  _assert_same_run(logdir, straight)
  assert (logdir / "checkpoints" / "damaged-48").is_dir()


def test_a_run_without_any_whole_checkpoint_is_refused(tmp_path):
  logdir = tmp_path / "run"
  _run(logdir, 2)
  _damage(logdir, 16)
  _damage(logdir, 32)
  for _ in range(2):  # Nor is it begun anew the next time.
    with pytest.raises(ValueError, match="no checkpoint in .* can be read"):
      _run(logdir, 3, resume=True)
    assert len(_rows(logdir, "metrics.jsonl")) == 2


def _listing(logdir):
  return sorted(
    (str(path.relative_to(logdir)), path.stat().st_mtime_ns)
    for folder in ("checkpoints", "best")
    for path in (logdir / folder).rglob("*")
  )


@pytest.mark.parametrize(
  "error",
  [
    MemoryError(),
    OSError(errno.EIO, "Input/output error"),
    PermissionError(errno.EACCES, "Permission denied"),
    OSError(errno.ESTALE, "Stale file handle"),
  ],
  ids=lambda error: type(error).__name__ + str(getattr(error, "errno", "")),
)
@pytest.mark.parametrize("where", ["checksums", "arrays"])
def test_a_checkpoint_that_cannot_be_read_ends_the_run_and_stays(
  where, error, three, straight, tmp_path, monkeypatch
):
  logdir = tmp_path / "run"
  shutil.copytree(three, logdir)
  before = _listing(logdir), _rows(logdir, "metrics.jsonl")
  path_open = pathlib.Path.open

  def fail(self, *args, **kwargs):
    if self.is_relative_to(logdir / "checkpoints" / "48"):
      raise error
    return path_open(self, *args, **kwargs)

  def fail_to_restore(*args, **kwargs):
    raise error

  with monkeypatch.context() as patch:
    if where == "checksums":
      patch.setattr(pathlib.Path, "open", fail)
    else:
      patch.setattr(ocp.CheckpointManager, "restore", fail_to_restore)
    with pytest.raises(type(error)) as raised:
      _run(logdir, 4, resume=True)
  if isinstance(error, OSError):
    assert raised.value.errno == error.errno
    assert "checkpoint 48 can't be read" in str(raised.value)
  assert (_listing(logdir), _rows(logdir, "metrics.jsonl")) == before
  _run(logdir, 4, resume=True)
  _assert_same_run(logdir, straight)


def test_a_checkpoint_of_another_version_is_refused_naming_both(
  tmp_path, monkeypatch
):
  monkeypatch.setattr(
    records.importlib.metadata, "version", lambda name: "0.0.1"
  )
  _run(tmp_path / "run", 1)
  monkeypatch.undo()
  version = records.initial()["version"]
  with pytest.raises(ValueError, match=f"qdrl_haiku 0.0.1, .* is {version}"):
    _run(tmp_path / "run", 2, resume=True)


def test_centroids_that_a_kill_kept_from_a_run_are_written_when_it_goes_on(
  tmp_path, monkeypatch
):
  cells = map_elites.cvt(jax.random.key(0), 5, (-2.0, -2.0), (2.0, 2.0))
  setup = test_illumination.setup()
  setup = setup._replace(
    map_elites=setup.map_elites._replace(tessellation=cells)
  )
  # As if killed before anything but the settings was written.
  settings = _SETTINGS | {"num_timesteps": 4 * _INTERVAL}
  RunDirectory(tmp_path / "run").begin(settings)
  monkeypatch.setattr(_RUN, "_train", lambda *arguments: ({}, None))
  _run(tmp_path / "run", 4, setup=setup, resume=True)
  with np.load(tmp_path / "run" / "centroids.npz") as file:
    np.testing.assert_array_equal(file["centroids"], cells.centroids)


def test_without_replay_in_its_checkpoint_a_run_resumes_with_an_empty_one(
  tmp_path,
):
  logdir = tmp_path / "run"
  _run(logdir, 1, checkpoint_replay=False)
  assert not (logdir / "checkpoints" / "16" / "replay").exists()
  _run(logdir, 2, checkpoint_replay=False, resume=True)
  _run(tmp_path / "more", 1, checkpoint_replay=True)
  _run(tmp_path / "more", 2, checkpoint_replay=True, resume=True)
  # It begins to learn anew, so it has fewer updates behind it.
  steps = [
    checkpoints_lib.Checkpoints(path / "checkpoints").record(32)["returns"]
    for path in (logdir, tmp_path / "more")
  ]
  assert steps[0] != steps[1]


def test_time_before_an_interruption_counts(tmp_path):
  _run(tmp_path / "run", 1)
  directory = RunDirectory(tmp_path / "run")
  _run(tmp_path / "run", 2, resume=True)
  first, second = (row["walltime"] for row in directory.rows("metrics.jsonl"))
  assert second > first > 0


def test_resuming_a_finished_run_changes_nothing(straight):
  before = [(straight / name).read_text() for name in _FILES]
  last = _run(straight, 4, resume=True)
  assert [(straight / name).read_text() for name in _FILES] == before
  assert last["generation"] == 4


def test_resuming_for_fewer_steps_than_are_done_is_refused(straight):
  before = (straight / "config.json").read_text()
  with pytest.raises(ValueError, match="num_timesteps 16 is less .* 64 that"):
    _run(straight, 1, resume=True)
  assert (straight / "config.json").read_text() == before


def test_a_run_of_many_seeds_has_the_key_of_each():
  seeds = (0, 7, 2**32 - 1)
  keys = _RUN._run_key(seeds, distributed.population_mesh(3))
  for key, seed in zip(keys, seeds, strict=True):
    np.testing.assert_array_equal(
      jax.random.key_data(key), jax.random.key_data(jax.random.key(seed))
    )


def test_a_directory_in_use_is_refused_and_left_alone(straight):
  before = (straight / "config.json").read_text()
  with pytest.raises(ValueError, match="is not empty"):
    _run(straight, 5)
  assert (straight / "config.json").read_text() == before


def test_resuming_with_another_setting_is_refused_naming_it(straight):
  with pytest.raises(ValueError, match="--num_envs was 2 and is 3"):
    _run(straight, 5, settings=_SETTINGS | {"num_envs": 3}, resume=True)
  assert len(_rows(straight, "metrics.jsonl")) == 4


@pytest.mark.parametrize(
  ("generations", "config", "message"),
  [
    (0, {}, "num_timesteps must be at least 1, got 0"),
    (0.5, {}, "num_timesteps 8 must be a multiple of the 16.*: 16"),
    (2.5, {}, "num_timesteps 40 .* 32 or 48"),
    (1, {"checkpoint_interval": 0}, "checkpoint_interval must be"),
    (1, {"max_checkpoints": -1}, "max_checkpoints must be .* got -1"),
    (1, {"on_divergence": "stpo"}, "'stpo' is unknown; did you mean 'stop'"),
    (1, {"seed": -1}, "seed must be .* got -1"),
    (1, {"seed": 2**32}, "seed must be .* got 4294967296"),
    (1, {"warm_start": "/no/such/run"}, "/no/such/run holds no run"),
  ],
)
def test_nonsense_is_refused_before_anything_is_written(
  generations, config, message, tmp_path
):
  with pytest.raises(ValueError, match=message):
    runs.run(
      _SETUP,
      runs.RunConfig(
        logdir=str(tmp_path / "run"),
        num_timesteps=int(generations * _INTERVAL),
        **config,
      ),
      _SETTINGS,
    )
  assert not (tmp_path / "run").exists()


def test_a_dry_run_says_what_memory_it_needs_and_writes_nothing(
  tmp_path, capsys
):
  assert _run(tmp_path / "run", 1, dry_run=True) == {}
  out = capsys.readouterr().out
  assert "memory needed" in out
  assert "devices used" in out
  assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
  ("size", "used", "is_chosen", "line"),
  [
    (8, 8, True, "8 of 8"),
    (15, 8, True, "8 of 8, with 15 agents in 16 slots"),
    (
      11, 6, True,
      "6 of 8, with 11 agents in 12 slots; 8 or 16 agents would use all",
    ),
    (10, 5, True, "5 of 8; 8 or 16 agents would use all"),
    (3, 3, True, "3 of 8; 8 agents would use all"),
    (4, 2, False, "2 of 8"),
  ],
)  # fmt: skip
def test_it_is_said_how_many_devices_are_used_and_how_to_use_all(
  size, used, is_chosen, line, monkeypatch
):
  monkeypatch.setattr(jax, "device_count", lambda: 8)
  mesh = jax.sharding.AbstractMesh((used,), ("population",))
  setup = common.setup(population_size=size)._replace(mesh=mesh)
  described = _RUN._describe_devices(setup, is_chosen)
  assert described.split(maxsplit=2) == ["devices", "used", line]


def test_cells_that_devices_share_may_leave_some_of_them_idle(monkeypatch):
  monkeypatch.setattr(jax, "device_count", lambda: 5)
  mesh = jax.sharding.AbstractMesh((4,), ("population",))
  setup = test_illumination.setup(mesh=mesh, shard_repertoire=True)
  assert setup.map_elites.tessellation.num_cells == 36
  assert _RUN._describe_devices(setup, True).endswith(
    "4 of 5; 35 or 40 cells would use all"
  )


def test_a_mesh_that_leaves_out_a_process_is_refused(monkeypatch):
  monkeypatch.setattr(jax, "process_count", lambda: 2)
  monkeypatch.setattr(jax, "device_count", lambda: 4)
  mesh = jax.sharding.AbstractMesh((2,), ("population",))
  with pytest.raises(ValueError, match="mesh has 2 of the 4 .*leave the mesh"):
    _RUN._check_mesh(common.setup()._replace(mesh=mesh))


def test_a_run_that_needs_more_memory_than_there_is_is_refused(tmp_path):
  setup = common.setup(_SETUP.controller, replay_capacity=2**31 - 1)
  with pytest.raises(ValueError, match="replay would take the most.*: lower"):
    _run(tmp_path / "run", 1, setup=setup)
  assert not (tmp_path / "run").exists()


def test_counts_that_the_population_lacks_are_refused_before_writing(tmp_path):
  config = controllers.PBTConfig(num_parents=3, num_replaced=2)
  setup = _SETUP._replace(controller=controllers.pbt(config, common.SPACE))
  with pytest.raises(ValueError, match="num_parents=3 and num_replaced=2"):
    _run(tmp_path / "run", 1, setup=setup)
  assert not (tmp_path / "run").exists()


def test_only_so_many_checkpoints_are_kept(tmp_path):
  _run(tmp_path / "run", 4, max_checkpoints=3)
  found = {path.name for path in (tmp_path / "run/checkpoints").iterdir()}
  assert found == {"32", "48", "64"}


def test_the_last_generation_has_a_checkpoint_though_it_is_not_due(tmp_path):
  _run(tmp_path / "run", 3, checkpoint_interval=2)
  found = {path.name for path in (tmp_path / "run/checkpoints").iterdir()}
  assert found == {"32", "48"}


def test_the_best_agent_ever_is_kept_apart(straight):
  members = _rows(straight, "pbt_members.jsonl")
  best = max(members, key=lambda row: row["return"])
  assert max(_steps(straight / "best")) == best["step"]
  state, record = artifacts.read_best(_SETUP.learner, str(straight))
  # With which it could be made again.
  assert record["member"] == best["member"]
  assert record["hyperparams"] == best["hyperparams"]
  assert record["return"] == pytest.approx(best["return"])
  # The return of five steps: five times the one reward of its greedy action.
  action = np.clip(np.asarray(state.point), -1, 1)
  expected = -5 * np.sum(np.square(action - common.TARGET))
  assert record["return"] == pytest.approx(expected, rel=1e-5)


def test_lineage_has_everyone_at_first_and_then_each_child(straight):
  rows = _rows(straight, "pbt_lineage.jsonl")
  first = [row for row in rows if row["generation"] == 0]
  assert [row["child"] for row in first] == [0, 1, 2, 3]
  assert {row["operator"] for row in first} == {"init"}
  for row in _rows(straight, "metrics.jsonl"):
    children = [r for r in rows if r["generation"] == row["generation"]]
    assert len(children) == row["pbt/num_replaced"]
    for child in children:
      assert child["step"] == row["step"]
      assert child["parent_fitness"] > child["child_fitness"]


def test_hyperparameters_follow_the_lineage(straight):
  members = _rows(straight, "pbt_members.jsonl")
  used = {(r["generation"], r["member"]): r["hyperparams"] for r in members}
  children = {
    (r["generation"], r["child"]): r["new_hyperparams"]
    for r in _rows(straight, "pbt_lineage.jsonl")
  }
  for generation in range(1, 5):
    for i in range(4):
      before = used.get((generation - 1, i))
      expected = children.get((generation - 1, i), before)
      assert used[generation, i] == expected


def test_steps_count_those_of_evaluation_only_in_the_total(straight):
  rows = _rows(straight, "metrics.jsonl")
  assert [row["step"] for row in rows] == [16, 32, 48, 64]
  # Four agents; per generation 16 steps and 2 episodes of 5.
  assert [row["total_env_steps"] for row in rows] == [
    4 * (16 + 10) * g for g in (1, 2, 3, 4)
  ]


def test_all_that_is_written_is_strict_json(straight):
  def refuse(constant):
    raise AssertionError(constant)

  for name in _FILES:
    for line in (straight / name).read_text().splitlines():
      json.loads(line, parse_constant=refuse)


@pytest.mark.parametrize("burn_in_period", [0, 1000])
def test_a_population_that_has_diverged_begins_anew(
  burn_in_period, tmp_path, capsys
):
  learner = common.quadratic_learner()

  def update(state, hyperparams, transitions, key):
    state, metrics = learner.update(state, hyperparams, transitions, key)
    # All of them diverge in their fifth critic step.
    broken = state.critic_steps == 5
    point = jax.numpy.where(broken, math.nan, state.point)
    return state._replace(point=point), metrics

  setup = common.setup(
    _SETUP.controller,
    learner._replace(update=update),
    fitness_window=2,
    burn_in_period=burn_in_period,
  )
  # Each generation of the run is lost.
  with pytest.raises(runs.EndedDiverged, match="last 2 of 2 generations"):
    _run(tmp_path / "run", 2, setup=setup)
  assert "All members have diverged" in capsys.readouterr().out
  rows = _rows(tmp_path / "run", "metrics.jsonl")
  assert [row["pbt/num_nonfinite"] for row in rows] == [4, 4]
  assert rows[0]["pbt/best_return"] is None
  lineage = _rows(tmp_path / "run", "pbt_lineage.jsonl")
  assert [row["operator"] for row in lineage[4:8]] == ["reinitialise"] * 4
  # They go on with what was drawn, not with what broke them.
  members = _rows(tmp_path / "run", "pbt_members.jsonl")
  for row, before, after in zip(
    lineage[4:8], members[:4], members[4:], strict=True
  ):
    assert row["old_hyperparams"] == before["hyperparams"]
    assert row["new_hyperparams"] == after["hyperparams"]
    assert before["hyperparams"] != after["hyperparams"]
  assert not list((tmp_path / "run" / "best").iterdir())


def test_a_population_that_has_diverged_may_end_its_run(tmp_path):
  learner = common.quadratic_learner()
  setup = _SETUP._replace(
    learner=learner._replace(
      update=lambda state, *_: (
        state._replace(point=state.point * math.nan),
        {"loss": jax.numpy.zeros(())},
      )
    )
  )
  with pytest.raises(runs.Diverged, match="in generation 1; lower"):
    _run(tmp_path / "run", 2, setup=setup, on_divergence="stop")


def _warm_started(logdir, setup):
  population = training.init_population(setup, jax.random.key(9))
  return population, warm_start(setup, population, str(logdir))


def test_a_warm_start_takes_the_other_runs_agents_best_first(straight):
  _, trees, record = _checkpoint(straight)
  order = sorted(range(4), key=lambda i: -record["returns"][i])
  setup = common.setup(_SETUP.controller, population_size=6)
  cold, warm = _warm_started(straight, setup)
  for i, source in enumerate(order + order[:2]):
    common.assert_bits_equal(
      common.member(warm.members.learner, i),
      common.member(trees["learner"], source),
    )
  common.assert_bits_equal(warm.members.replay, cold.members.replay)
  common.assert_bits_equal(warm.members.environment, cold.members.environment)
  common.assert_bits_equal(warm.hyperparams, cold.hyperparams)


@pytest.mark.parametrize(
  "learner",
  [common.quadratic_learner(size=3), common.quadratic_learner()],
  ids=["another size", "another kind"],
)
def test_a_warm_start_from_other_agents_is_refused(
  learner, straight, tmp_path, request
):
  if "kind" in request.node.name:
    learner = learner._replace(init=lambda key: {"point": jax.numpy.ones(2)})
  setup = _SETUP._replace(learner=learner)
  with pytest.raises(ValueError, match="agents of another kind") as error:
    _run(tmp_path / "run", 1, setup=setup, warm_start=str(straight))
  assert "\n" not in str(error.value)
  assert not (tmp_path / "run").exists()


def test_a_warm_start_from_a_run_without_checkpoint_is_refused(tmp_path):
  RunDirectory(tmp_path / "new").begin({})
  before = sorted((tmp_path / "new").iterdir())
  with pytest.raises(ValueError, match="has nothing in checkpoints/"):
    _run(tmp_path / "run", 1, warm_start=str(tmp_path / "new"))
  assert sorted((tmp_path / "new").iterdir()) == before


def test_a_warm_started_run_can_be_resumed(straight, tmp_path):
  settings = _SETTINGS | {"warm_start": str(straight)}
  warm = {"settings": settings, "warm_start": str(straight)}
  _run(tmp_path / "run", 1, **warm)
  first = _rows(tmp_path / "run", "metrics.jsonl")
  last = _rows(straight, "metrics.jsonl")[-1]
  # It begins where the other one was, or a generation on.
  assert first[0]["pbt/best_return"] > last["pbt/mean_return"]
  _run(tmp_path / "run", 2, resume=True, **warm)
  assert _rows(tmp_path / "run", "metrics.jsonl")[0] == first[0]
  _run(tmp_path / "whole", 2, **warm)
  _assert_same_run(tmp_path / "run", tmp_path / "whole")


def test_each_seed_has_the_key_that_it_has_alone():
  mesh = distributed.population_mesh(1, jax.devices()[:1])

  def key_data(*seeds):
    return np.asarray(jax.random.key_data(_RUN._run_key(seeds, mesh)))

  expected = np.asarray(jax.random.key_data(jax.random.key(6)))
  np.testing.assert_array_equal(key_data(6), expected)
  np.testing.assert_array_equal(key_data(5, 6)[1], expected)


def _report(generation, returns, finite=(True, True)):
  """What concerns the best agent, on the host."""
  returns = np.array(returns, np.float32)
  rates = np.array([0.25, 0.5])
  member = int(np.argmax(np.where(finite, returns, -np.inf)))
  return reports_lib.GenerationReport(
    generation=generation,
    evaluation=None,
    scores={"episode_return": returns},
    fitness=returns,
    hyperparams={"rate": rates},
    metrics={},
    num_updates=np.zeros(2, np.int32),
    finite=np.array(finite),
    decision=None,
    best=reports_lib.Best(
      member=member,
      fitness=returns[member] if any(finite) else np.float32(np.nan),
      episode_return=returns[member],
      hyperparams={"rate": rates[member]},
      state=None,
    ),
    evaluation_steps=np.array([[3], [4]], np.int32),
  )


def test_the_best_is_the_best_ever_and_never_a_diverged_one():
  record = records.initial()
  reports = [
    _report(1, [3.0, 9.0], finite=(True, False)),
    _report(2, [2.0, 1.0]),
    _report(3, [3.0, 4.0]),
    _report(4, [99.0, 99.0], finite=(False, False)),
  ]
  found = []
  for report in reports:
    record = records.updated(record, common.setup(), report, 0.0)
    best = record["best"]
    found.append((best["generation"], best["member"], best["return"]))
  assert found == [(1, 0, 3.0), (1, 0, 3.0), (3, 1, 4.0), (3, 1, 4.0)]
  assert record["best"]["hyperparams"] == {"rate": 0.5}
  assert record["total_env_steps"] == 4 * (3 + 4 + 4 * _INTERVAL)


def test_more_steps_than_an_int32_counts_are_counted():
  setup = common.setup(population_size=3000, perturbation_interval=2**20)
  record = records.initial()
  for generation in (1, 2):
    report = _report(generation, [3.0, 9.0])
    record = records.updated(record, setup, report, 0.0)
  assert record["total_env_steps"] == 2 * (3000 * 2**20 + 7)
  rates = records.rates(setup, report, 2.0)
  assert rates["training/env_steps_per_second"] == 3000 * 2**19


def test_episodes_of_more_steps_than_an_int32_counts_are_counted():
  setup = test_illumination.setup(with_pbt=False)
  steps = np.full((3, 2), 2**30, np.int32)
  report = _report(1, [3.0, 9.0])._replace(evaluation_steps=steps)
  assert records.env_steps(setup, report) == 6 * 2**30


def test_a_first_rung_beyond_the_runs_end_is_refused(tmp_path, monkeypatch):
  monkeypatch.setattr(_RUN, "make_programs", None)
  halving = controllers.successive_halving(
    controllers.SuccessiveHalvingConfig(first_rung=4), common.SPACE
  )
  with pytest.raises(ValueError, match="decision 4 .* 3 generations; lower"):
    _run(tmp_path / "run", 3, setup=common.setup(halving))
  # The last generation decides too.
  with pytest.raises(TypeError, match="NoneType"):
    _run(tmp_path / "run", 4, setup=common.setup(halving))


def test_cells_that_devices_cannot_share_are_refused():
  mesh = jax.sharding.AbstractMesh((5,), ("population",))
  setup = test_illumination.setup(mesh=mesh)
  plan = setup.map_elites._replace(shard_repertoire=True)
  with pytest.raises(ValueError, match="5 devices .* 36 cells .* 35 or 40"):
    _RUN._check_mesh(setup._replace(map_elites=plan))


def _elites(**settings):
  """A repertoire with agents that train."""
  setup = test_illumination.setup()
  return setup._replace(
    config=dataclasses.replace(setup.config, **settings)
  )


def _variations(**plan):
  """A repertoire alone."""
  setup = test_illumination.setup(with_pbt=False)
  return setup._replace(map_elites=setup.map_elites._replace(**plan))


@pytest.mark.parametrize(
  ("setup", "message"),
  [
    (_elites(burn_in_period=16), "burn_in_period=16 .*map_elites.*at 0"),
    (_elites(fitness_window=2), "fitness_window=2 .*map_elites.*at 1"),
    (
      _elites(fitness="diversity_return"),
      "fitness='diversity_return' .*map_elites.* at 'episode_return'",
    ),
    (
      _elites()._replace(evaluate=lambda *_: None),
      "evaluate has no effect: with map_elites .*leave it at None",
    ),
    (
      common.setup(controllers.random_search(common.SPACE), burn_in_period=16),
      "burn_in_period=16 .*replaces non-finite members alone.*at 0",
    ),
    (
      common.setup(burn_in_period=16),
      "burn_in_period=16 .*without a controller.*at 0",
    ),
    (
      common.setup(fitness_window=2),
      "fitness_window=2 .*without a controller.*at 1",
    ),
    (
      common.setup(inherit_replay=True),
      "inherit_replay=True .*without a controller.*at False",
    ),
    (
      _variations(num_replaced_by_samples=1),
      "num_replaced_by_samples=1 .*no members that train.*at 0",
    ),
    (
      _variations()._replace(config=_SETUP.config),
      "fitness_window=2 .*map_elites",
    ),
    (
      _variations()._replace(config=common.setup().config),
      "population_size=4 .*no members that train.*at 1",
    ),
  ],
)
def test_a_setting_that_would_be_ignored_is_refused_before_anything(
  setup, message, tmp_path, monkeypatch
):
  monkeypatch.setattr(_RUN, "make_programs", None)
  with pytest.raises(ValueError, match=message):
    _run(tmp_path / "run", 10, setup=setup)
  assert not (tmp_path / "run").exists()
  init = training.init_population
  if setup.map_elites is not None:
    init = illumination.init_illumination
  with pytest.raises(ValueError, match=message):
    init(setup, jax.random.key(0))


def test_an_interval_of_repertoires_that_there_are_none_of_is_refused(tmp_path):
  with pytest.raises(ValueError, match="repertoire_interval is 3, .* at 10"):
    _run(tmp_path / "run", 1, repertoire_interval=3)
  assert not (tmp_path / "run").exists()
