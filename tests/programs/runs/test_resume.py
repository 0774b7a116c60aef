"""Tests of runs that go on, to the bit as if they had never stopped."""

import errno
import shutil

import jax
import orbax.checkpoint as ocp
import pytest

from qdrl_haiku.programs import artifacts
from qdrl_haiku.programs.runs import resume as resume_lib
from qdrl_haiku.programs.storage.directory import RunDirectory
from tests.programs.runs import common as runs_common
from tests.programs.runs.common import SETUP, rows, run
from tests.training import common, test_curriculum


def test_a_run_killed_again_and_again_ends_alike(trained, tmp_path):
  logdir, config = tmp_path / "lr=[1e-3]" / "a\\b", {"checkpoint_interval": 2}
  for generation in range(1, 5):
    runs_common.killed_after(
      generation, logdir, 4, resume=generation > 1, **config)
    assert len(rows(logdir)) == generation
    with (logdir / "metrics.jsonl").open("a") as file:
      file.write('{"generation": 7, "eval')  # Cut short.
  run(logdir, 4, resume=True, **config)
  runs_common.assert_same_run(logdir, trained)
  # What came before a kill counts.
  seconds = [x["walltime"] for x in RunDirectory(logdir).rows("metrics.jsonl")]
  assert seconds == sorted(seconds)


def test_a_curriculum_goes_on_where_it_stood(tmp_path):
  setup = test_curriculum.setup()
  run(tmp_path / "whole", 3, setup)
  runs_common.killed_after(2, tmp_path / "killed", 3, setup)
  run(tmp_path / "killed", 3, setup, resume=True)
  runs_common.assert_same_run(tmp_path / "killed", tmp_path / "whole", setup)
  trees, _ = runs_common.checkpoint(tmp_path / "killed", setup)
  assert trees["curriculum"].reach.any()


def _damage(logdir, step):
  folder = logdir / "checkpoints" / str(step) / "learner" / "d"
  file = max(folder.iterdir(), key=lambda path: path.stat().st_size)
  content = bytearray(file.read_bytes())
  content[len(content) // 2] ^= 1
  file.write_bytes(content)


class _Deadly:
  """A program that ends the run where it's called."""

  def __call__(self, *args):
    raise runs_common.Killed

  def compile(self):
    """There is nothing to compile."""


def test_whichever_checkpoint_is_taken_has_its_best_agent(tmp_path):
  logdir = tmp_path / "run"
  run(logdir, 4, max_checkpoints=3)
  checkpoints = runs_common.checkpoints(logdir)

  def programs(*args):
    # Once the checkpoint is read, and before the next generation.
    return runs_common.compiled_once(*args)._replace(draws=(None, _Deadly()))

  for step in (64, 48, 32):
    expected = checkpoints.record(step)["best"]
    with pytest.raises(runs_common.Killed):
      run(logdir, 5, resume=True, programs=programs)
    assert rows(logdir)[-1]["step"] == step
    assert artifacts.read_best(SETUP.learner, str(logdir))[1] == expected
    _damage(logdir, step)
  before = rows(logdir)
  for _ in range(2):  # Nor is it begun anew the next time.
    with pytest.raises(ValueError, match="no checkpoint in .* can be read"):
      run(logdir, 5, resume=True)
  assert (logdir / "checkpoints" / "damaged-64").is_dir()
  assert rows(logdir) == before


def test_best_agents_are_kept_as_long_as_a_checkpoint_needs_them(trained):
  # The latest of all, and of what was the best in each checkpoint.
  found = resume_lib.needed_to_resume([16, 48, 64, 112], [48, 96])
  assert found == {48, 64, 112}
  found = runs_common.steps(trained / "checkpoints")
  assert found == [48, 64]
  checkpoints = runs_common.checkpoints(trained)
  assert set(runs_common.steps(trained / "best")) == {
    checkpoints.record(step)["best"]["step"] for step in found}


def _listing(logdir):
  return sorted(
    (str(path.relative_to(logdir)), path.stat().st_mtime_ns)
    for folder in ("checkpoints", "best")
    for path in (logdir / folder).rglob("*"))


def test_an_unreadable_checkpoint_ends_the_run(trained, tmp_path, monkeypatch):
  logdir = tmp_path / "run"
  shutil.copytree(trained, logdir)
  before = _listing(logdir), rows(logdir)

  def fail(*args, **kwargs):
    raise OSError(errno.ESTALE, "Stale file handle")

  with monkeypatch.context() as patch:
    patch.setattr(ocp.StandardCheckpointHandler, "restore", fail)
    with pytest.raises(OSError, match="checkpoint 64 can't be read") as raised:
      run(logdir, 5, resume=True)
  assert raised.value.errno == errno.ESTALE
  assert (_listing(logdir), rows(logdir)) == before


def test_a_run_without_a_kept_replay_has_an_empty_one(trained, tmp_path):
  logdir = tmp_path / "run"
  run(logdir, 1, checkpoint_replay=False)
  assert not (logdir / "checkpoints" / "16" / "replay").exists()
  run(logdir, 2, checkpoint_replay=False, resume=True)
  # It begins to learn anew, so it has fewer updates behind it.
  first, second = (rows(x)[1] for x in (logdir, trained))
  assert first["pbt/mean_return"] != second["pbt/mean_return"]


def test_a_warm_start_takes_the_others_agents_best_first(trained, tmp_path):
  trees, record = runs_common.checkpoint(trained)
  order = sorted(range(4), key=lambda i: -record["returns"][i])
  setup = common.setup(SETUP.controller, population_size=6)
  cold = common.init(setup, jax.random.key(9))
  warm = resume_lib._warm_start(setup, cold, str(trained))
  for i, source in enumerate(order + order[:2]):
    common.assert_bits_equal(
      common.member(warm.members.learner, i),
      common.member(trees["learner"], source))
  for name in ("replay", "environment"):
    common.assert_bits_equal(
      getattr(warm.members, name), getattr(cold.members, name))
  common.assert_bits_equal(warm.hyperparams, cold.hyperparams)


def test_a_warm_started_run_can_be_resumed(trained, tmp_path):
  warm = {"warm_start": str(trained)}
  warm["settings"] = runs_common.SETTINGS | warm
  run(tmp_path / "run", 1, **warm)
  run(tmp_path / "run", 2, resume=True, **warm)
  run(tmp_path / "whole", 2, **warm)
  runs_common.assert_same_run(tmp_path / "run", tmp_path / "whole")


def test_a_warm_start_from_other_agents_or_none_is_refused(trained, tmp_path):
  other = SETUP._replace(learner=common.quadratic_learner(size=3))
  RunDirectory(tmp_path / "new").begin({})
  for setup, source, message in (
    (other, trained, "agents of another kind"),
    (SETUP, tmp_path / "new", "has nothing in checkpoints/"),
  ):
    before = sorted(source.iterdir())
    with pytest.raises(ValueError, match=message):
      run(tmp_path / "run", 1, setup=setup, warm_start=str(source))
    assert not (tmp_path / "run").exists()
    assert sorted(source.iterdir()) == before
