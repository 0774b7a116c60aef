"""Tests of a generation's row of numbers, and of such rows as files."""

import csv

import numpy as np
import pytest
from scipy import stats

from qdrl_haiku import actors, controllers
from qdrl_haiku.runs import records
from qdrl_haiku.runs.metrics_writer import MetricsWriter
from qdrl_haiku.storage.directory import RunDirectory
from qdrl_haiku.training import state as state_lib
from tests.events import events


def _report(returns, finite=None, parents=None, scores=None):
  returns = np.asarray(returns, np.float32)
  size = returns.shape[0]
  finite = np.ones(size, bool) if finite is None else np.array(finite)
  rates = np.linspace(1.0, 2.0, size, dtype=np.float32)
  return state_lib.GenerationReport(
    generation=np.int32(3),
    evaluation=actors.Evaluation(
      returns, np.full(returns.shape, 10, np.int32), None
    ),
    scores={"episode_return": returns.mean(axis=1)} | (scores or {}),
    fitness=returns.mean(axis=1),
    hyperparams={"rate": rates},
    metrics={"critic_loss": np.arange(size, dtype=np.float32)},
    num_updates=np.full(size, 5, np.int32),
    finite=finite,
    decision=controllers.Decision(
      np.arange(size) if parents is None else np.array(parents),
      {"rate": rates},
      np.zeros(size, int),
    ),
    best=None,
    evaluation_steps=np.zeros(returns.shape, np.int32),
    next_hyperparams={"rate": rates},
    sampled_cells=np.full(size, -1),
  )


def _row(*args, seeds=(7,), has_controller=True, **metrics):
  """The row of a report."""
  report = _report(*args)
  decision = report.decision._replace(metrics=metrics)
  report = report._replace(decision=decision if has_controller else None)
  return records.row(seeds, report, records.initial())


def test_the_row_has_means_over_members_and_episodes():
  row = _row([[1, 3], [5, 7]], has_controller=False, seeds=(7, 8))
  expected = {
    "generation": 3,
    "eval/episode_return": 4.0,
    "eval/episode_length": 10.0,
    "training/critic_loss": 0.5,
    "seed": 7,
  }
  assert expected.items() <= row.items()


def test_what_a_controller_says_of_itself_is_named_so():
  row = _row([[1]], **{"length_scale/tau": np.float32(0.5)})
  assert row["controller/length_scale/tau"] == 0.5


def test_the_populations_row_has_best_mean_and_worst():
  row = _row([[1, 3], [5, 7], [-2, 0]], None, [0, 1, 1])
  assert row["pbt/best_return"] == 6.0
  assert row["pbt/mean_return"] == pytest.approx(7 / 3)
  assert row["pbt/min_return"] == -1.0
  assert (row["pbt/num_replaced"], row["pbt/num_nonfinite"]) == (1, 0)
  assert row["pbt/hyperparams/rate/mean"] == 1.5
  assert row["pbt/hyperparams/rate/min"] == 1.0
  assert row["pbt/hyperparams/rate/max"] == 2.0


def test_non_finite_members_are_counted_and_left_out():
  row = _row([[1], [99], [3]], [True, False, True])
  assert (row["pbt/best_return"], row["pbt/mean_return"]) == (3.0, 2.0)
  assert row["pbt/num_nonfinite"] == 1
  row = _row([[1], [2]], [False, False])
  assert np.isnan(row["pbt/best_return"]) and row["pbt/num_nonfinite"] == 2


def test_seeds_have_a_column_each_and_their_interquartile_mean_is_scipys():
  settings = {"has_controller": False, "seeds": (7, 8, 9, 10)}
  row = _row([[0], [100], [1], [3]], **settings)
  assert row["eval/episode_return/seed_8"] == 100.0
  assert row["eval/episode_return/seed_10"] == 3.0
  assert row["eval/episode_return_iqm"] == 2.0  # Of 1 and 3.
  returns = np.random.default_rng(0).normal(size=(11, 3))
  row = _row(returns, seeds=range(11), has_controller=False)
  expected = stats.trim_mean(returns.astype(np.float32).mean(axis=1), 0.25)
  assert row["eval/episode_return_iqm"] == pytest.approx(expected)


@pytest.fixture
def directory(tmp_path):
  return RunDirectory(tmp_path / "run")


def _at(generation, **values):
  return {"generation": generation, "step": 10 * generation} | values


def _numbers(rows):
  """What TensorBoard's files are to hold of rows."""
  return sorted(
    (name, row["step"], float(np.float32(value)))
    for row in rows
    for name, value in row.items()
    if value is not None
  )


def test_metrics_are_the_same_in_every_file(directory):
  directory.begin({})
  writer = MetricsWriter(directory, use_tensorboard=True)
  for generation in (1, 2):
    writer.write(_at(generation, loss=0.5 * generation, missing=float("nan")))
  writer.close()
  rows = directory.rows("metrics.jsonl")
  with (directory.path / "metrics.csv").open(newline="") as file:
    table = list(csv.DictReader(file))
  assert [row.keys() for row in table] == [row.keys() for row in rows]
  for row, cells in zip(rows, table, strict=True):
    for name, value in row.items():
      assert cells[name] == ("" if value is None else str(value))
  assert sorted(events(directory.path)) == _numbers(rows)
  assert ("loss", 20, 1.0) in events(directory.path)


def test_a_resumed_writer_goes_on_after_the_rows_that_are_left(directory):
  directory.begin({})
  writer = MetricsWriter(directory, use_tensorboard=False)
  for generation in (1, 2, 3):
    writer.write(_at(generation))
  directory.forget_after("metrics.jsonl", 2)
  writer = MetricsWriter(directory, use_tensorboard=False)
  writer.write(_at(3))
  with (directory.path / "metrics.csv").open(newline="") as file:
    assert [row["step"] for row in csv.DictReader(file)] == ["10", "20", "30"]
  assert not list(directory.path.glob("events*"))


def test_a_row_that_was_written_survives_a_kill(directory):
  directory.begin({})
  writer = MetricsWriter(directory, use_tensorboard=True)
  row = _at(1, **{f"loss_{i}": 0.1 * i for i in range(200)})
  writer.write(row)  # And isn't closed.
  assert sorted(events(directory.path)) == _numbers([row])


def test_a_resumed_run_has_the_events_of_its_rows_and_each_once(directory):
  directory.begin({})
  writer = MetricsWriter(directory, use_tensorboard=True)
  for generation in (1, 2, 3):
    writer.write(_at(generation, walltime=9.0, loss=0.5, missing=float("nan")))
  (file,) = directory.path.glob("events*")
  file.write_bytes(file.read_bytes()[:-100])  # As an older version left it.
  directory.forget_after("metrics.jsonl", 2)
  writer = MetricsWriter(directory, use_tensorboard=True)
  writer.write(_at(3, walltime=12.0, loss=1.5, missing=float("nan")))
  rows = directory.rows("metrics.jsonl")
  assert [row["step"] for row in rows] == [10, 20, 30]
  assert sorted(events(directory.path)) == _numbers(rows)
  assert len(list(directory.path.glob("events*"))) == 1


def test_events_that_are_wanted_from_a_resumption_on_begin_with_the_run(
  directory
):
  directory.begin({})
  MetricsWriter(directory, use_tensorboard=False).write(_at(1, loss=0.5))
  MetricsWriter(directory, use_tensorboard=True)
  assert ("loss", 10, 0.5) in events(directory.path)


def test_a_run_killed_before_its_first_checkpoint_leaves_no_events(directory):
  directory.begin({})
  MetricsWriter(directory, use_tensorboard=True).write(_at(1, loss=0.5))
  directory.forget_after("metrics.jsonl", -1)
  MetricsWriter(directory, use_tensorboard=True)
  assert events(directory.path) == []
