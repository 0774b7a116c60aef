"""Runs of a learner of ten lines, whose programs are compiled once."""

import numpy as np
import pytest

from qdrl_haiku import actors, controllers
from qdrl_haiku.programs import artifacts, runs
from qdrl_haiku.programs.runs import resume as resume_lib
from qdrl_haiku.programs.storage import checkpoints as checkpoints_lib
from qdrl_haiku.programs.storage.directory import RunDirectory
from qdrl_haiku.training.state import Best, GenerationReport
from tests.training import common

SETUP = common.setup(
  controllers.pbt(controllers.PBTConfig(), common.SPACE), fitness_window=2)
SETTINGS = {"seed": 0, "num_envs": 2}
FILES = ("metrics.jsonl", "pbt_lineage.jsonl", "pbt_members.jsonl")
# What depends on the clock.
_TIMES = ("walltime", "per_second", "compile_seconds")
_known = {}


class Killed(Exception):
  """Ends a run where a kill would."""


def compiled_once(trainer, run_key):
  """Programs that all runs of a setup share."""
  setup = trainer.setup
  parts = (setup.learner.update, setup.env, setup.map_elites)
  name = (setup.config, *map(id, parts), run_key.shape)
  if name not in _known:
    # With the parts, or others might get their numbers.
    _known[name] = runs.make_programs(trainer, run_key), parts
  return _known[name][0]


def run(
  logdir, generations, setup=SETUP, settings=SETTINGS, callback=None,
  programs=compiled_once, **config,
):
  """A run of so many generations; returns the last row of metrics."""
  steps = int(generations * setup.steps_per_generation)
  config = {"log_to": (), "checkpoint_interval": 1} | config
  row, _ = runs.run(
    setup, runs.RunConfig(logdir=str(logdir), num_timesteps=steps, **config),
    settings | {"num_timesteps": steps}, ["num_timesteps"], callback, programs)
  return row


def killed_after(generation, *args, **kwargs):
  """Runs until a generation is recorded, and checkpointed if it's due."""

  def die(row):
    if row["generation"] == generation:
      raise Killed

  with pytest.raises(Killed):
    run(*args, callback=die, **kwargs)


def rows(logdir, name="metrics.jsonl"):
  """Rows without what depends on the clock."""
  return [
    {key: x for key, x in row.items() if not key.endswith(_TIMES)}
    for row in RunDirectory(logdir).rows(name)]


def steps(folder):
  """The numbers by which files or folders are named."""
  names = [path.name.removesuffix(".npz") for path in folder.iterdir()]
  return sorted(int(name) for name in names if name.isdecimal())


def checkpoints(logdir):
  """Those of a run."""
  return checkpoints_lib.Checkpoints(logdir / "checkpoints")


def checkpoint(logdir, setup=SETUP):
  """Everything in the latest checkpoint, and its record."""
  found = checkpoints(logdir)
  step = found.steps()[0]
  like = resume_lib.trees_to_resume(
    runs.RunConfig(logdir=str(logdir)), common.init(setup))
  trees, record = found.restore(step, like), found.record(step)
  return trees, {k: v for k, v in record.items() if k != "walltime"}


def assert_same_run(actual, expected, setup=SETUP):
  """Compares all that two runs have left, checkpoints bit for bit."""
  for name in FILES:
    assert rows(actual, name) == rows(expected, name), name
  table = (actual / "metrics.csv").read_text()
  assert table.count("\n") == 1 + len(rows(actual))
  for read in (
    lambda x: checkpoint(x, setup),
    lambda x: artifacts.read_best(setup.learner, str(x)),
  ):
    (trees, record), (wanted, wanted_record) = read(actual), read(expected)
    assert record == wanted_record
    common.assert_bits_equal(trees, wanted)


def report(returns, finite=None, parents=None, generation=3):
  """What a generation reports of members' episodes [P, N], on the host."""
  returns = np.asarray(returns, np.float32)
  size = len(returns)
  finite = np.array([True] * size if finite is None else finite)
  members = np.arange(size)
  scores = returns.mean(axis=1)
  rates = {"rate": np.linspace(1.0, 2.0, size, dtype=np.float32)}
  best = int(np.argmax(np.where(finite, scores, -np.inf)))
  return GenerationReport(
    generation=np.int32(generation),
    evaluation=actors.Evaluation(returns, np.full_like(returns, 10), None),
    scores={"episode_return": scores}, fitness=scores, hyperparams=rates,
    metrics={"critic_loss": np.arange(size, dtype=np.float32)},
    num_updates=np.full(size, 5, np.int32), finite=finite,
    decision=controllers.Decision(
      members if parents is None else np.array(parents), rates, 0 * members),
    best=Best(
      member=best, fitness=scores[best] if any(finite) else np.float32(np.nan),
      episode_return=scores[best], hyperparams=common.member(rates, best),
      state=None),
    evaluation_steps=np.full(returns.shape, 7, np.int32),
    next_hyperparams=rates, sampled_cells=np.full(size, -1))
