"""Tests of rows of metrics as files."""

import csv

import numpy as np
import pytest

from qdrl_haiku.runs.metrics_writer import MetricsWriter
from qdrl_haiku.storage.directory import RunDirectory
from tests.events import events


@pytest.fixture
def directory(tmp_path):
  return RunDirectory(tmp_path / "run")


def _row(generation, **values):
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
    writer.write(_row(generation, loss=0.5 * generation, missing=float("nan")))
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
    writer.write(_row(generation))
  directory.forget_after("metrics.jsonl", 2)
  writer = MetricsWriter(directory, use_tensorboard=False)
  writer.write(_row(3))
  with (directory.path / "metrics.csv").open(newline="") as file:
    assert [row["step"] for row in csv.DictReader(file)] == ["10", "20", "30"]
  assert not list(directory.path.glob("events*"))


def test_a_row_that_was_written_survives_a_kill(directory):
  directory.begin({})
  writer = MetricsWriter(directory, use_tensorboard=True)
  row = _row(1, **{f"loss_{i}": 0.1 * i for i in range(200)})
  writer.write(row)  # And isn't closed.
  assert sorted(events(directory.path)) == _numbers([row])


def test_a_resumed_run_has_the_events_of_its_rows_and_each_once(directory):
  directory.begin({})
  writer = MetricsWriter(directory, use_tensorboard=True)
  for generation in (1, 2, 3):
    writer.write(_row(generation, walltime=9.0, loss=0.5, missing=float("nan")))
  (file,) = directory.path.glob("events*")
  file.write_bytes(file.read_bytes()[:-100])  # As an older version left it.
  directory.forget_after("metrics.jsonl", 2)
  writer = MetricsWriter(directory, use_tensorboard=True)
  writer.write(_row(3, walltime=12.0, loss=1.5, missing=float("nan")))
  rows = directory.rows("metrics.jsonl")
  assert [row["step"] for row in rows] == [10, 20, 30]
  assert sorted(events(directory.path)) == _numbers(rows)
  assert len(list(directory.path.glob("events*"))) == 1


def test_events_that_are_wanted_from_a_resumption_on_begin_with_the_run(
  directory
):
  directory.begin({})
  MetricsWriter(directory, use_tensorboard=False).write(_row(1, loss=0.5))
  MetricsWriter(directory, use_tensorboard=True)
  assert ("loss", 10, 0.5) in events(directory.path)


def test_a_run_killed_before_its_first_checkpoint_leaves_no_events(directory):
  directory.begin({})
  MetricsWriter(directory, use_tensorboard=True).write(_row(1, loss=0.5))
  directory.forget_after("metrics.jsonl", -1)
  MetricsWriter(directory, use_tensorboard=True)
  assert events(directory.path) == []
