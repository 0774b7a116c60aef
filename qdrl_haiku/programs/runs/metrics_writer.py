"""Rows of metrics as JSON lines and CSV, and with pictures to trackers."""

import csv
import hashlib
import math
import os
import pathlib
import time
from collections.abc import Sequence
from typing import Any

from qdrl_haiku.distributed import hosts
from qdrl_haiku.programs.runs.progress import progress_without
from qdrl_haiku.programs.storage import strict_json
from qdrl_haiku.programs.storage.directory import RunDirectory
from qdrl_haiku.programs.storage.strict_json import Record


class MetricsWriter:
  """Writes a row per generation as JSON lines, CSV, and where else is asked.

  Of several processes the first alone writes.
  """

  def __init__(
    self, directory: RunDirectory, log_to: Sequence[str],
    has_pictures: bool = False,
  ) -> None:
    """Goes on after the rows in `metrics.jsonl`.

    Rewrites the other files from these rows, and from `plots/` if it
    `has_pictures`: a kill may have kept rows from them, and a resumed run
    repeats the generations after its checkpoint.
    """
    self._directory = directory
    self._csv = directory.path / "metrics.csv"
    self._events: _Events | None = None
    self._wandb: Any = None
    if not hosts.is_first_host():
      return
    rows = directory.rows("metrics.jsonl")
    self._csv.unlink(missing_ok=True)
    for row in rows:
      self._append_csv(row)
    if "tensorboard" in log_to:
      self._events = _Events(directory, rows, has_pictures)
    if "wandb" in log_to:
      self._wandb = _begin_wandb(directory)

  def write(self, row: Record) -> None:
    """Writes one row; each row of a run has the same names."""
    if not hosts.is_first_host():
      return
    self._directory.append("metrics.jsonl", [row])
    self._append_csv(row)
    if self._events is not None:
      self._events.write(row, time.time())
      self._events.file.flush()
    if self._wandb is not None:
      self._wandb.log(_finite(row), step=int(row["step"]))

  def write_pictures(self, step: int, name: str = "*") -> None:
    """Hands the pictures and films of a step to the trackers.

    Args:
      step: environment steps per agent.
      name: of those in `plots/<name>_<step>` that are meant.
    """
    for tag, path in _pictures(self._directory, step, name).items():
      if self._events is not None:
        self._events.write_picture(tag, path, step, time.time())
        self._events.file.flush()
      if self._wandb is not None:
        self._wandb.log({tag: _wandb_picture(path)}, step=step)

  def close(self) -> None:
    """Closes the files."""
    if self._events is not None:
      self._events.file.close()
    if self._wandb is not None:
      self._wandb.finish()

  def _append_csv(self, row: Record) -> None:
    is_new = not self._csv.exists()
    with self._csv.open("a", newline="") as file:
      writer = csv.DictWriter(file, list(row), lineterminator="\n")
      if is_new:
        writer.writeheader()
      writer.writerow(strict_json.strict_json_value(row))


def _finite(row: Record) -> Record:
  """Returns the numbers of a row that are finite."""
  return {
    name: x for name, x in row.items() if x is not None and math.isfinite(x)}


def _pictures(
  directory: RunDirectory, step: int, name: str = "*"
) -> dict[str, pathlib.Path]:
  """Returns the pictures and films of a step, by the names in trackers."""
  return {
    f"plots/{path.stem.removesuffix(f'_{step}')}": path
    for kind in ("png", "gif")
    for path in directory.path.glob(f"plots/{name}_{step}.{kind}")}


def _wandb_picture(path: pathlib.Path) -> Any:
  """Returns a picture or film as wandb wants it."""
  import wandb

  if path.suffix == ".gif":
    return wandb.Video(str(path), format="gif")
  return wandb.Image(str(path))


def _begin_wandb(directory: RunDirectory) -> Any:
  """Begins a run of wandb's, or goes on with the one of this directory."""
  import wandb

  path = directory.path.absolute()
  is_known = "WANDB_MODE" in os.environ or wandb.api.api_key is not None
  return wandb.init(
    project="qdrl_haiku", name=path.name, dir=str(path),
    # By which a resumed run is found again.
    id=hashlib.sha256(str(path).encode()).hexdigest()[:16], resume="allow",
    # Or it would ask for an account.
    mode=None if is_known else "offline", config=directory.settings())


class _Events:
  """Writes TensorBoard events, which are on the disk once they're flushed.

  It doesn't use tensorboardX's `SummaryWriter`, whose `flush` returns before a
  thread has written its queue, so that a kill would lose rows.
  """

  def __init__(
    self, directory: RunDirectory, rows: list[Record], has_pictures: bool
  ) -> None:
    # Here, since importing it takes long.
    from tensorboardX.event_file_writer import EventsWriter
    from tensorboardX.proto import event_pb2

    before = list(directory.path.glob("events.out.tfevents.*"))
    path = directory.path.absolute() / "events"
    self.file = EventsWriter(str(path), f".{time.time_ns()}")
    now = time.time()
    if before:
      # A running TensorBoard then discards what it read from the old files.
      restart = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
      self.file.write_event(
        event_pb2.Event(wall_time=now, step=0, session_log=restart))
    seconds = [row.get("walltime") or 0.0 for row in rows]
    for row, since_start in zip(rows, seconds, strict=True):
      wall_time, step = now - seconds[-1] + since_start, int(row["step"])
      self.write(row, wall_time)
      found = _pictures(directory, step) if has_pictures else {}
      for tag, path in found.items():
        with progress_without(f"picture {path}"):
          self.write_picture(tag, path, step, wall_time)
    self.file.flush()
    for path in before:
      path.unlink()

  def write(self, row: Record, wall_time: float) -> None:
    """Writes the numbers of a row that are finite, as one event."""
    from tensorboardX import summary
    from tensorboardX.proto import event_pb2

    event = event_pb2.Event(wall_time=wall_time, step=int(row["step"]))
    for name, value in _finite(row).items():
      event.summary.value.extend(summary.scalar(name, value).value)
    self.file.write_event(event)

  def write_picture(
    self, tag: str, path: pathlib.Path, step: int, wall_time: float
  ) -> None:
    """Writes a picture or a film, as its file is, as one event."""
    from PIL import Image
    from tensorboardX.proto import event_pb2

    event = event_pb2.Event(wall_time=wall_time, step=step)
    shown = event.summary.value.add(tag=tag).image
    with Image.open(path) as image:
      shown.width, shown.height = image.size
      shown.colorspace = 4 if image.mode == "RGBA" else 3
    shown.encoded_image_string = path.read_bytes()
    self.file.write_event(event)
