"""Rows of metrics as JSON lines, CSV and TensorBoard events."""

import csv
import math
from typing import Any

from qdrl_haiku.distributed import hosts
from qdrl_haiku.storage import strict_json
from qdrl_haiku.storage.directory import RunDirectory


class MetricsWriter:
  """Writes a row per generation as JSON lines, CSV and TensorBoard events.

  Of several processes the first alone writes.
  """

  def __init__(self, directory: RunDirectory, use_tensorboard: bool) -> None:
    """Goes on after the rows that are there.

    Args:
      directory: of the run.
      use_tensorboard: whether to write events too.
    """
    self._directory = directory
    self._csv = directory.path / "metrics.csv"
    self._events = None
    if not hosts.is_first():
      return
    rows = directory.rows("metrics.jsonl")
    self._csv.unlink(missing_ok=True)
    for row in rows:
      self._append_csv(row)
    if use_tensorboard:
      import tensorboardX  # Here, since importing it takes long.

      # What an interrupted run wrote beyond these rows is written again.
      self._events = tensorboardX.SummaryWriter(
        str(directory.path),
        purge_step=rows[-1]["step"] + 1 if rows else None,
      )

  def write(self, row: dict[str, float | int]) -> None:
    """Writes one row; each row of a run has the same names.

    Args:
      row: numbers by name, `step` among them.
    """
    if not hosts.is_first():
      return
    self._directory.append("metrics.jsonl", [row])
    self._append_csv(row)
    if self._events is not None:
      for name, value in row.items():
        if math.isfinite(value):
          self._events.add_scalar(name, value, int(row["step"]))
      self._events.flush()

  def close(self) -> None:
    """Closes the files."""
    if self._events is not None:
      self._events.close()

  def _append_csv(self, row: dict[str, Any]) -> None:
    is_new = not self._csv.exists()
    with self._csv.open("a", newline="") as file:
      writer = csv.DictWriter(file, list(row), lineterminator="\n")
      if is_new:
        writer.writeheader()
      writer.writerow(strict_json.strict(row))
