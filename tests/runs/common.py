"""Runs of a learner of ten lines, whose programs are compiled once."""

import contextlib
import sys

import pytest

from qdrl_haiku import artifacts, controllers, runs
from qdrl_haiku.reports import pictures
from qdrl_haiku.runs import resume as resume_lib
from qdrl_haiku.storage import checkpoints as checkpoints_lib
from qdrl_haiku.storage.directory import RunDirectory
from tests.training import common

RUN = sys.modules["qdrl_haiku.runs.run"]
SETUP = common.setup(
  controllers.pbt(controllers.PBTConfig(), common.SPACE), fitness_window=2
)
INTERVAL = SETUP.config.perturbation_interval
SETTINGS = {"seed": 0, "num_envs": 2}
FILES = ("metrics.jsonl", "pbt_lineage.jsonl", "pbt_members.jsonl")
# What depends on the clock.
_TIMES = ("walltime", "per_second", "compile_seconds")
_known = {}


class Killed(Exception):
  """Ends a run where a kill would."""


@contextlib.contextmanager
def _compiled_once():
  """Lets all runs of a setup share their programs, and draw nothing."""
  make, compile_ = RUN.make_programs, RUN.compile_generation

  def make_or_know(setup, mesh, run_key, cache):
    parts = (setup.learner.update, setup.env, setup.map_elites)
    name = (setup.config, *map(id, parts), run_key.shape)
    if name not in _known:
      # With the parts, or others might get their numbers.
      _known[name] = compile_(make(setup, mesh, run_key, cache)), parts
    return _known[name][0]

  with pytest.MonkeyPatch.context() as patch:
    if make is not None:  # A test may have made sure that it isn't called.
      patch.setattr(RUN, "make_programs", make_or_know)
    patch.setattr(RUN, "compile_generation", lambda programs: programs)
    patch.setattr(pictures, "plot_run", lambda path: None)
    yield


def run(
  logdir, generations, setup=SETUP, settings=SETTINGS, callback=None, **config
):
  """A run of so many generations; returns the last row of metrics."""
  steps = int(generations * setup.steps_per_generation)
  config = {"use_tensorboard": False, "checkpoint_interval": 1} | config
  with _compiled_once():
    row, _ = runs.run(
      setup,
      runs.RunConfig(logdir=str(logdir), num_timesteps=steps, **config),
      settings | {"num_timesteps": steps},
      may_change=["num_timesteps"],
      callback=callback,
    )
  return row


def killed_after(generation, *args, **kwargs):
  """Runs until a generation is recorded, and checkpointed if it's due."""

  def die(row):
    if row["generation"] == generation:
      raise Killed

  with pytest.raises(Killed):
    run(*args, callback=die, **kwargs)


def warm_started(setup, state, logdir):
  """A new state with the agents of another run."""
  return resume_lib._warm_start(setup, state, str(logdir))


def rows(logdir, name="metrics.jsonl"):
  """Rows without what depends on the clock."""
  return [
    {key: x for key, x in row.items() if not key.endswith(_TIMES)}
    for row in RunDirectory(logdir).rows(name)
  ]


def steps(folder):
  """The numbers by which files or folders are named."""
  names = [path.name.removesuffix(".npz") for path in folder.iterdir()]
  return sorted(int(name) for name in names if name.isdecimal())


def checkpoints(logdir):
  """Those of a run."""
  return checkpoints_lib.Checkpoints(logdir / "checkpoints")


def checkpoint(logdir):
  """Everything in the latest checkpoint, and its record."""
  found = checkpoints(logdir)
  step = found.steps()[0]
  like = resume_lib.to_trees(
    runs.RunConfig(logdir=str(logdir)), common.init(SETUP)
  )
  trees = found.restore(step, like)
  record = found.record(step)
  found.close()
  return trees, {k: v for k, v in record.items() if k != "walltime"}


def assert_same_run(actual, expected):
  """Compares all that two runs have left, checkpoints bit for bit."""
  for name in FILES:
    assert rows(actual, name) == rows(expected, name), name
  assert (actual / "metrics.csv").read_text().count("\n") == 1 + len(
    rows(actual)
  )
  (trees, record), (wanted, wanted_record) = map(
    checkpoint, (actual, expected)
  )
  assert record == wanted_record
  common.assert_bits_equal(trees, wanted)
  (state, record), (wanted, wanted_record) = (
    artifacts.read_best(SETUP.learner, str(x)) for x in (actual, expected)
  )
  assert record == wanted_record
  common.assert_bits_equal(state, wanted)
