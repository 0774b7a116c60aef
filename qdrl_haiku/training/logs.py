"""What a run writes while it trains: settings, rows, curves for TensorBoard."""

import csv
import fcntl
import importlib.metadata
import json
import math
import os
import pathlib
import platform
import weakref
from collections.abc import Iterable, Mapping
from typing import Any

import jax
import numpy as np

from qdrl_haiku import xla
from qdrl_haiku.training import hosts

_LIBRARIES = (
  "qdrl_haiku",
  "jax",
  "jaxlib",
  "dm-haiku",
  "optax",
  "rlax",
  "distrax",
  "brax",
  "orbax-checkpoint",
  "numpy",
)

# Settings with which a run may be continued other than it began.
_MAY_CHANGE = (
  "checkpoint_interval",
  "compilation_cache_dir",
  "logdir",
  "max_checkpoints",
  "num_generations",
  "num_reevaluations",
  "num_timesteps",
  "on_divergence",
  "repertoire_interval",
  "resume",
  "suffix",
  "use_tensorboard",
)


class RunDirectory:
  """The directory of one run, and its rows.

  Of several processes the first alone writes.

  Attributes:
    path: where it is.
  """

  def __init__(self, path: str | os.PathLike[str]) -> None:
    self.path = pathlib.Path(path)
    self._lock: weakref.finalize | None = None

  def begin(self, settings: dict[str, Any]) -> None:
    """Creates the directory and writes `config.json` and `versions.json`.

    Args:
      settings: all that the run was started with.

    Raises:
      ValueError: if the directory holds anything, can't be written, or another
        process trains in it.
    """
    try:
      self.path.mkdir(parents=True, exist_ok=True)
      self._hold()
      # What a kill cut short while it was written is nothing.
      if any(path.suffix != ".tmp" for path in self.path.iterdir()):
        raise ValueError(
          f"logdir {self.path} is not empty; choose another, or continue the "
          "run in it with --resume."
        )
      hosts.wait_for_all("directory is empty")
      self.write_json("config.json", settings)
      self.write_json("versions.json", versions())
    except OSError as error:
      raise ValueError(
        f"logdir {self.path} can't be written ({error.strerror}); choose "
        "another."
      ) from error

  def go_on(self, settings: dict[str, Any]) -> None:
    """Checks that a run is continued as it began, and notes what may change.

    Args:
      settings: all that the run is continued with.

    Raises:
      ValueError: if there is no run here, if it had other settings, or if
        another process goes on with it.
    """
    before = self.settings()
    differing = [
      f"--{name} was {before.get(name)!r} and is {settings.get(name)!r}"
      for name in sorted(before.keys() | settings.keys())
      if name not in _MAY_CHANGE and before.get(name) != settings.get(name)
    ]
    if differing:
      raise ValueError(
        f"the run in {self.path} has other settings: {'; '.join(differing)}. "
        "Resume it with those it began with."
      )
    self._hold()
    hosts.wait_for_all("settings are the same")
    self.write_json("config.json", settings)

  def close(self) -> None:
    """Lets another process train in the directory."""
    if self._lock is not None:
      self._lock()
      self._lock = None

  def _hold(self) -> None:
    """Keeps other processes out until `close`, or until this one ends."""
    if not hosts.is_first() or self._lock is not None:
      return
    lock = os.open(self.path, os.O_RDONLY)
    try:
      fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
      os.close(lock)
      raise ValueError(
        f"logdir {self.path} is in use: another process trains in it; wait for "
        "that, or stop it first."
      ) from None
    except OSError:  # Not every file system knows locks.
      os.close(lock)
      return
    self._lock = weakref.finalize(self, os.close, lock)

  def settings(self) -> dict[str, Any]:
    """What the run in the directory was started with.

    Returns:
      The settings.

    Raises:
      ValueError: if there is no run here.
    """
    try:
      settings = json.loads((self.path / "config.json").read_text())
      if not isinstance(settings, dict):
        raise ValueError("It holds no settings.")
    except (OSError, ValueError) as error:
      raise ValueError(
        f"{self.path} holds no run: its config.json can't be read; name the "
        "directory of a run."
      ) from error
    return settings

  def write_json(self, name: str, value: Any) -> None:
    """Writes a JSON file whole or not at all.

    Args:
      name: of the file.
      value: what to write.
    """
    if not hosts.is_first():
      return
    _replace(
      self.path / name, json.dumps(value, indent=2, sort_keys=True) + "\n"
    )

  def write_arrays(self, name: str, arrays: dict[str, Any]) -> None:
    """Writes a NumPy file (.npz) whole or not at all.

    Args:
      name: of the file.
      arrays: by name.
    """
    if not hosts.is_first():
      return
    temporary = self.path / (name + ".tmp")
    with temporary.open("wb") as file:
      np.savez_compressed(file, **arrays)
    temporary.replace(self.path / name)

  def append(self, name: str, rows: Iterable[dict[str, Any]]) -> None:
    """Appends rows to a file of JSON lines; NaN becomes null.

    Args:
      name: of the file.
      rows: of plain Python values.
    """
    if not hosts.is_first():
      return
    lines = [to_json(row) for row in rows]
    with (self.path / name).open("a") as file:
      file.write("".join(line + "\n" for line in lines))

  def rows(
    self, name: str, columns: Mapping[str, type] | None = None
  ) -> list[dict[str, Any]]:
    """The rows of a file of JSON lines, none if there is no such file.

    Args:
      name: of the file.
      columns: which each row must have, and of what kind; None for any.

    Returns:
      The rows; one cut short by a kill at the end is left out.

    Raises:
      ValueError: if another line is damaged, or a column is.
    """
    path = self.path / name
    if not path.exists():
      return []
    rows = []
    lines = path.read_bytes().splitlines()
    for number, line in enumerate(lines, start=1):
      try:
        rows.append(_row(line))
      except ValueError as error:
        if number == len(lines):
          break
        raise ValueError(
          f"{path} is damaged in line {number}; remove the line, or the file."
        ) from error
      for column, kind in (columns or {}).items():
        if not isinstance(rows[-1].get(column), kind):
          raise ValueError(
            f"{path} is damaged in line {number}: {column} is "
            f"{rows[-1].get(column)!r}; remove the line, or the file."
          )
    return rows

  def forget_after(self, name: str, generation: int) -> None:
    """Drops the rows of generations that a resumed run will do again.

    Args:
      name: of a file of JSON lines.
      generation: the last to keep.
    """
    if not hosts.is_first() or not (self.path / name).exists():
      return
    kept = [row for row in self.rows(name) if row["generation"] <= generation]
    _replace(
      self.path / name, "".join(json.dumps(row) + "\n" for row in kept)
    )


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
      writer.writerow(_strict(row))


def versions() -> dict[str, Any]:
  """What a run depends on outside its settings.

  Returns:
    Versions of Python and the libraries, the devices, and what this package
    wants of XLA that the installed one doesn't know (see `xla`).
  """
  found: dict[str, Any] = {"python": platform.python_version()}
  for name in _LIBRARIES:
    try:
      found[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
      found[name] = None
  found["devices"] = [str(device) for device in jax.devices()]
  found["xla_left_out"] = xla.left_out()
  return found


def to_json(row: dict[str, Any]) -> str:
  """One line of strict JSON.

  Args:
    row: of plain Python values; NaN and infinities become null.

  Returns:
    The line, without its end.
  """
  return json.dumps(_strict(row), allow_nan=False)


def _row(line: bytes) -> dict[str, Any]:
  row = json.loads(line)
  if not isinstance(row, dict) or "generation" not in row:
    raise ValueError("It is no row.")
  return row


def _strict(value: Any) -> Any:
  """The same with None for what strict JSON has no number for."""
  if isinstance(value, dict):
    return {name: _strict(x) for name, x in value.items()}
  if isinstance(value, float) and not math.isfinite(value):
    return None
  return value


def _replace(path: pathlib.Path, text: str) -> None:
  """Writes a file so that a kill leaves the old one or the new one."""
  temporary = path.with_name(path.name + ".tmp")
  temporary.write_text(text)
  temporary.replace(path)
