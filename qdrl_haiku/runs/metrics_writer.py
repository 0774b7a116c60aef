"""Rows of metrics as JSON lines, CSV and TensorBoard events."""

import csv
import math
import time

from qdrl_haiku.distributed import hosts
from qdrl_haiku.runs.records import Row
from qdrl_haiku.storage import strict_json
from qdrl_haiku.storage.directory import RunDirectory


class MetricsWriter:
  """Writes a row per generation as JSON lines, CSV and TensorBoard events.

  Of several processes the first alone writes.
  """

  def __init__(self, directory: RunDirectory, use_tensorboard: bool) -> None:
    """Goes on after the rows that are there.

    From these rows the other files are written anew, so that they hold what a
    kill kept from them, and nothing that the run will do again.
    """
    self._directory = directory
    self._csv = directory.path / "metrics.csv"
    self._events: _Events | None = None
    if not hosts.is_first_host():
      return
    rows = directory.rows("metrics.jsonl")
    self._csv.unlink(missing_ok=True)
    for row in rows:
      self._append_csv(row)
    if use_tensorboard:
      self._events = _Events(directory, rows)

  def write(self, row: Row) -> None:
    """Writes one row; each row of a run has the same names."""
    if not hosts.is_first_host():
      return
    self._directory.append("metrics.jsonl", [row])
    self._append_csv(row)
    if self._events is not None:
      self._events.write(row, time.time())
      self._events.file.flush()

  def close(self) -> None:
    """Closes the files."""
    if self._events is not None:
      self._events.file.close()

  def _append_csv(self, row: Row) -> None:
    is_new = not self._csv.exists()
    with self._csv.open("a", newline="") as file:
      writer = csv.DictWriter(file, list(row), lineterminator="\n")
      if is_new:
        writer.writeheader()
      writer.writerow(strict_json.strict_json_value(row))


class _Events:
  """Writes TensorBoard events, which are on the disk once they're flushed.

  Not by tensorboardX's `SummaryWriter`: its `flush` returns before a thread has
  written what is in its queue, and a kill loses that.
  """

  def __init__(self, directory: RunDirectory, rows: list[Row]) -> None:
    # Here, since importing it takes long.
    from tensorboardX.event_file_writer import EventsWriter
    from tensorboardX.proto import event_pb2

    before = list(directory.path.glob("events.out.tfevents.*"))
    path = directory.path.absolute() / "events"
    self.file = EventsWriter(str(path), f".{time.time_ns()}")
    now = time.time()
    if before:
      # So that a TensorBoard that looks on forgets what it has read of them.
      restart = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
      self.file.write_event(
        event_pb2.Event(wall_time=now, step=0, session_log=restart)
      )
    seconds = [row.get("walltime") or 0.0 for row in rows]
    for row, since_start in zip(rows, seconds, strict=True):
      self.write(row, now - seconds[-1] + since_start)
    self.file.flush()
    for path in before:
      path.unlink()

  def write(self, row: Row, wall_time: float) -> None:
    """Writes the numbers of a row that are finite, as one event."""
    from tensorboardX import summary
    from tensorboardX.proto import event_pb2

    event = event_pb2.Event(wall_time=wall_time, step=int(row["step"]))
    for name, value in row.items():
      if value is not None and math.isfinite(value):
        event.summary.value.extend(summary.scalar(name, value).value)
    self.file.write_event(event)
