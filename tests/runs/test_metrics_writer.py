"""Tests of rows of metrics as files."""

import csv
import struct

import pytest
from tensorboardX.proto import event_pb2

from qdrl_haiku.runs.metrics_writer import MetricsWriter
from qdrl_haiku.storage.directory import RunDirectory


@pytest.fixture
def directory(tmp_path):
  return RunDirectory(tmp_path / "run")


def _row(generation, **values):
  return {"generation": generation, "step": 10 * generation} | values


def _events(path):
  """The scalars in TensorBoard's files: (name, step, value)."""
  found = []
  for file in sorted(path.glob("events*")):
    data = file.read_bytes()
    while data:
      # A length, its checksum, the event, its checksum.
      (length,) = struct.unpack("<Q", data[:8])
      event = event_pb2.Event.FromString(data[12 : 12 + length])
      data = data[16 + length :]
      found += [
        (value.tag, event.step, value.simple_value)
        for value in event.summary.value
      ]
  return found


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
  events = _events(directory.path)
  assert ("loss", 10, 0.5) in events and ("loss", 20, 1.0) in events
  assert not [event for event in events if event[0] == "missing"]


def test_tensorboard_can_be_left_out(directory):
  directory.begin({})
  writer = MetricsWriter(directory, use_tensorboard=False)
  writer.write(_row(1))
  writer.close()
  assert not list(directory.path.glob("events*"))


def test_a_resumed_writer_goes_on_after_the_rows_that_are_left(directory):
  directory.begin({})
  writer = MetricsWriter(directory, use_tensorboard=False)
  for generation in (1, 2, 3):
    writer.write(_row(generation))
  directory.forget_after("metrics.jsonl", 2)
  writer = MetricsWriter(directory, use_tensorboard=False)
  writer.write(_row(3))
  with (directory.path / "metrics.csv").open(newline="") as file:
    steps = [row["step"] for row in csv.DictReader(file)]
  assert steps == ["10", "20", "30"]
