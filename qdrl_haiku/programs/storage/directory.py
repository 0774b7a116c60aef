"""The directory of one run: its settings, and its rows."""

import functools
import importlib.metadata
import json
import os
import pathlib
import sys
import weakref
from collections.abc import Collection, Iterable

import jax
import numpy as np

from qdrl_haiku import __version__, files, platform, trees
from qdrl_haiku.distributed import hosts
from qdrl_haiku.programs.storage import strict_json
from qdrl_haiku.types import Record, Tree

if sys.platform != "win32":
  import fcntl

_LIBRARIES = (
  "jax", "jaxlib", "dm-haiku", "optax", "rlax", "distrax", "brax",
  "orbax-checkpoint", "numpy")
# By file of rows, the types of the columns that readers need.
_COLUMNS: dict[str, dict[str, type]] = {
  "metrics.jsonl": {"generation": int, "step": int},
  "pbt_lineage.jsonl": {
    "generation": int, "step": int, "child": int, "parent": int,
    "operator": str, "new_hyperparams": dict},
  "pbt_members.jsonl": {
    "generation": int, "step": int, "member": int, "hyperparams": dict},
  "skills.jsonl": {
    "generation": int, "step": int, "member": int, "skill": list}}
ROW_FILES = tuple(_COLUMNS)
"""Files whose rows after the last checkpoint a resumed run drops."""


class RunDirectory:
  """The directory of one run; of several processes the first alone writes."""

  def __init__(self, path: str | os.PathLike[str]) -> None:
    self.path = pathlib.Path(path)
    self._lock: weakref.finalize | None = None

  def check_begins(self) -> None:
    """Refuses to begin a run where something is already."""
    try:
      found = list(self.path.iterdir())
    except FileNotFoundError:
      return
    except OSError as error:
      raise self._is_unusable(error) from error
    # A file that a kill cut short doesn't count.
    if not all(map(files.is_file_cut_short, found)):
      raise ValueError(
        f"logdir={self.path} is not empty; choose another, or continue the "
        "run in it with --resume.")

  def begin(self, settings: Record) -> None:
    """Creates the directory and writes `config.json` and `versions.json`."""
    try:
      self.path.mkdir(parents=True, exist_ok=True)
      self._hold()
      self.check_begins()
      hosts.wait_for_all_hosts("directory is empty")
      self.write_json("config.json", settings)
      self.write_json("versions.json", library_versions())
    except OSError as error:
      raise self._is_unusable(error) from error

  def _is_unusable(self, error: OSError) -> ValueError:
    """Returns what to say of a directory that isn't for us to write."""
    return ValueError(
      f"logdir={self.path} can't be written ({error.strerror}); choose "
      "another.")

  def check_goes_on(
    self, settings: Record, may_change: Collection[str] = ()
  ) -> None:
    """Refuses to continue a run of another version, or of other settings."""
    path = self.path / "versions.json"
    written = json.loads(path.read_text()) if path.exists() else {}
    version = written.get("qdrl_haiku", __version__)
    if version != __version__:
      raise ValueError(
        f"the run in {self.path} was written by qdrl_haiku {version}, and this "
        f"is {__version__}, which may compute something else; install that "
        f"version, or begin a new run with warm_start={self.path}.")
    before, now = _flat(self.settings()), _flat(settings)
    differing = [
      f"{name} was {before.get(name)!r} and is {now.get(name)!r}"
      for name in sorted(before.keys() | now.keys())
      if name.removeprefix("--") not in may_change
      and before.get(name) != now.get(name)
      and not _says_what_was_in_effect(name, before, now)]
    if differing:
      raise ValueError(
        f"the run in {self.path} has other settings: {'; '.join(differing)}. "
        "Resume it with those it began with.")

  def go_on(self, settings: Record, may_change: Collection[str] = ()) -> None:
    """Checks that a run goes on as it began, and notes what may change."""
    self.check_goes_on(settings, may_change)
    self._hold()
    hosts.wait_for_all_hosts("settings are the same")
    self.write_json("config.json", settings)
    # A kill may have come before it was written.
    if not (self.path / "versions.json").exists():
      self.write_json("versions.json", library_versions())

  def close(self) -> None:
    """Unlocks the directory, so that another process may train in it."""
    if self._lock is not None:
      self._lock()
      self._lock = None

  def _hold(self) -> None:
    """Keeps other processes out until `close`, or until this one ends."""
    if not hosts.is_first_host() or self._lock is not None:
      return
    if sys.platform == "win32":  # Which locks no directory.
      return
    lock = os.open(self.path, os.O_RDONLY)
    try:
      fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
      os.close(lock)
      raise ValueError(
        f"logdir={self.path} is in use: another process trains in it; wait for "
        "that, or stop it first.") from None
    except OSError:  # Not every file system knows locks.
      os.close(lock)
      return
    self._lock = weakref.finalize(self, os.close, lock)

  def settings(self) -> Record:
    """Returns what the run in the directory was started with."""
    try:
      settings = json.loads((self.path / "config.json").read_text())
      if not isinstance(settings, dict):
        raise ValueError("It holds no settings.")
    except (OSError, ValueError) as error:
      raise ValueError(
        f"{self.path} holds no run: its config.json can't be read; name the "
        "directory of a run.") from error
    return settings

  def write_json(self, name: str, value: Record) -> None:
    """Writes a JSON file whole or not at all."""
    if not hosts.is_first_host():
      return
    with files.file_written_whole(self.path / name) as temporary:
      temporary.write_text(json.dumps(value, indent=2, sort_keys=True) + "\n")

  def write_arrays(self, name: str, arrays: dict[str, Tree]) -> None:
    """Writes a NumPy file (.npz) whole or not at all."""
    if not hosts.is_first_host():
      return
    with files.file_written_whole(self.path / name) as temporary:
      np.savez_compressed(temporary, **arrays)

  def append(self, name: str, rows: Iterable[Record]) -> None:
    """Appends rows to a file of JSON lines; NaN becomes null."""
    if not hosts.is_first_host():
      return
    with (self.path / name).open("a") as file:
      file.write(strict_json.to_strict_json_lines(rows))

  def rows(self, name: str) -> list[Record]:
    """Returns the rows of a file of JSON lines, which may not be there."""
    path, rows = self.path / name, list[Record]()
    columns = _COLUMNS.get(name, {"generation": int})
    lines = path.read_bytes().splitlines() if path.exists() else []
    for number, line in enumerate(lines, start=1):
      damage = ""
      try:
        row = json.loads(line)
        for column, kind in columns.items():
          if not isinstance(value := row.get(column), kind):
            damage = f": {column} is {value!r}"
            raise ValueError("It is no row.")
      except (AttributeError, ValueError) as error:
        # A kill may have cut the last one short.
        if number == len(lines) and not damage:
          return rows
        raise ValueError(
          f"{path} is damaged in line {number}{damage}; remove the line, or "
          "the file.") from error
      rows.append(row)
    return rows

  def forget_after(self, name: str, generation: int) -> None:
    """Drops the rows of generations that a resumed run will do again."""
    if not hosts.is_first_host() or not (self.path / name).exists():
      return
    kept = [row for row in self.rows(name) if row["generation"] <= generation]
    with files.file_written_whole(self.path / name) as temporary:
      temporary.write_text(strict_json.to_strict_json_lines(kept))


def _says_what_was_in_effect(name: str, before: Record, now: Record) -> bool:
  """Returns whether a flag has the value that it had without being given."""
  in_effect = f"hyperparams/{name.removeprefix('--')} (in effect)"
  return (
    name in before and before[name] is None
    and before.get(in_effect) == now.get(name))


def _flat(settings: Record) -> Record:
  """Returns settings by flag, as JSON has them, and numbers in effect."""
  settings = json.loads(json.dumps(settings))
  in_effect = settings.pop("in_effect", {})
  in_effect["ranges"] = settings.pop("ranges", {})
  flags = {f"--{name}": value for name, value in settings.items()}
  leaves = trees.tree_leaves_by_name(in_effect)
  return flags | {f"{name} (in effect)": x for name, x in leaves.items()}


def library_versions() -> Record:
  """Returns what a run depends on outside its settings."""
  found: Record = {
    "python": sys.version.split()[0], "qdrl_haiku": __version__}
  found |= {name: _version(name) for name in _LIBRARIES}
  found["devices"] = [str(device) for device in jax.devices()]
  found["xla_left_out"] = platform.unknown_to_xla()
  return found


@functools.cache
def _version(name: str) -> str | None:
  """Returns a library's version, which takes time to find."""
  try:
    return importlib.metadata.version(name)
  except importlib.metadata.PackageNotFoundError:
    return None
