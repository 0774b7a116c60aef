"""Tests of a generation's row of numbers, and of such rows as files."""

import csv
import importlib.util
import sys
import types

import numpy as np
import pytest
from PIL import Image
from scipy import stats

from qdrl_haiku.programs.runs import records
from qdrl_haiku.programs.runs.config import RunConfig
from qdrl_haiku.programs.runs.metrics_writer import MetricsWriter
from qdrl_haiku.programs.storage.directory import RunDirectory
from tests.events import events, pictures
from tests.programs.runs import common as runs_common


def _row(*args, seeds=(7,), has_controller=True, **metrics):
  """The row of a report."""
  report = runs_common.report(*args)
  decision = report.decision._replace(metrics=metrics)
  report = report._replace(decision=decision if has_controller else None)
  return records.record_row(seeds, report, records.initial_record())


def test_seeds_have_a_column_each_and_their_interquartile_mean_is_scipys():
  returns = np.random.default_rng(0).normal(size=(11, 3)).astype(np.float32)
  row = _row(returns, seeds=range(7, 18), has_controller=False)
  expected = {
    "generation": 3, "eval/episode_return": returns.mean(),
    "eval/episode_length": 10.0, "training/critic_loss": 5.0, "seed": 7,
    "eval/episode_return_iqm": stats.trim_mean(returns.mean(axis=1), 0.25)} | {
    f"eval/episode_return/seed_{7 + i}": x.mean() for i, x in enumerate(returns)
  }
  assert {name: row[name] for name in expected} == pytest.approx(expected)


def test_the_populations_row_has_best_mean_and_worst():
  row = _row([[1, 3], [5, 7], [-2, 0]], None, [0, 1, 1], loss=np.float32(0.5))
  expected = {
    "pbt/best_return": 6.0, "pbt/mean_return": 7 / 3, "pbt/min_return": -1.0,
    "pbt/num_replaced": 1, "pbt/num_nonfinite": 0,
    "pbt/hyperparams/rate/mean": 1.5, "pbt/hyperparams/rate/min": 1.0,
    "pbt/hyperparams/rate/max": 2.0, "controller/loss": 0.5}
  assert {name: row[name] for name in expected} == pytest.approx(expected)


def test_non_finite_members_are_counted_and_left_out():
  row = _row([[1], [99], [3]], [True, False, True])
  assert (row["pbt/best_return"], row["pbt/mean_return"]) == (3.0, 2.0)
  assert row["pbt/num_nonfinite"] == 1
  row = _row([[1], [2]], [False, False])
  assert np.isnan(row["pbt/best_return"]) and row["pbt/num_nonfinite"] == 2


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
    if value is not None)


def _writer(directory, *log_to):
  return MetricsWriter(directory, log_to or ("tensorboard",))


def test_metrics_are_the_same_in_every_file_also_after_a_kill(directory):
  directory.begin({})
  writer = _writer(directory)
  more = {f"loss_{i}": 0.1 * i for i in range(200)}
  for generation in (1, 2):
    writer.write(_at(generation, missing=float("nan"), **more))
  # The writer isn't closed.
  rows = directory.rows("metrics.jsonl")
  with (directory.path / "metrics.csv").open(newline="") as file:
    table = list(csv.DictReader(file))
  assert [row.keys() for row in table] == [row.keys() for row in rows]
  for row, cells in zip(rows, table, strict=True):
    for name, value in row.items():
      assert cells[name] == ("" if value is None else str(value))
  assert sorted(events(directory.path)) == _numbers(rows)
  assert ("loss_10", 20, 1.0) in events(directory.path)


def test_events_are_those_of_the_rows_whatever_was_there(directory):
  directory.begin({})
  MetricsWriter(directory, ()).write(_at(1, loss=0.5))
  assert not list(directory.path.glob("events*"))
  # They may be wanted from a resumption on.
  _writer(directory)
  assert ("loss", 10, 0.5) in events(directory.path)
  # A kill before the first checkpoint leaves none.
  directory.forget_after("metrics.jsonl", -1)
  _writer(directory)
  assert events(directory.path) == []


def _picture(directory, name, width):
  (directory.path / "plots").mkdir(exist_ok=True)
  path = directory.path / "plots" / name
  Image.new("RGB", (width, 5)).save(path)
  return path


def test_pictures_are_read_back_and_stay_with_their_rows(directory):
  directory.begin({})
  writer = _writer(directory)
  _picture(directory, "lineage_10.png", 7)
  _picture(directory, "best_20.gif", 8)
  _picture(directory, ".best_20.tmp-1.gif", 9)  # Cut short.
  for generation in (1, 2):
    writer.write(_at(generation))
    writer.write_pictures(10 * generation, "best")
  assert pictures(directory.path).keys() == {("plots/best", 20)}
  # Whoever goes on finds those of later generations too, or spoilt ones.
  _picture(directory, "lineage_30.png", 7)
  (directory.path / "plots" / "spoilt_20.png").write_text("nothing")
  MetricsWriter(directory, ("tensorboard",), has_pictures=True)
  found = pictures(directory.path)
  assert {name: (x.format, x.size) for name, x in found.items()} == {
    ("plots/lineage", 10): ("PNG", (7, 5)), ("plots/best", 20): ("GIF", (8, 5))}


def test_wandb_gets_the_rows_and_finds_a_resumed_run_again(
  directory, monkeypatch
):
  begun, logged = [], []

  def init(**arguments):
    begun.append(arguments)
    return types.SimpleNamespace(
      log=lambda row, step: logged.append((row, step)), finish=lambda: None)

  monkeypatch.delenv("WANDB_MODE", raising=False)
  package = types.SimpleNamespace(
    init=init, Image=lambda path: ("png", path),
    Video=lambda path, format: (format, path),
    api=types.SimpleNamespace(api_key=None))
  monkeypatch.setitem(sys.modules, "wandb", package)
  directory.begin({"seed": 3})
  for generation in (1, 2):
    writer = _writer(directory, "wandb")
    writer.write(_at(generation, loss=0.5, broken=float("nan")))
    shown = {
      f"plots/{kind}": (kind, str(_picture(directory, f"{kind}_20.{kind}", 7)))
      for kind in ("png", "gif")}
    writer.write_pictures(10 * generation)
    writer.close()
  assert logged == [
    *(({"generation": i, "step": 10 * i, "loss": 0.5}, 10 * i) for i in (1, 2)),
    *(({name: picture}, 20) for name, picture in shown.items())]
  assert begun[0] == begun[1]
  assert begun[0]["mode"] == "offline"
  assert begun[0]["config"]["seed"] == 3


def test_wandb_that_is_not_there_is_said_in_one_line(monkeypatch):
  monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
  with pytest.raises(ValueError, match="pip install wandb"):
    RunConfig(log_to=("wandb",))
