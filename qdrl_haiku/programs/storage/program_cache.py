"""Keeps compiled programs, and shapes, for later runs of the same settings."""

import contextlib
import hashlib
import os
import pathlib
import pickle
from typing import Any, NamedTuple

from absl import logging

from qdrl_haiku import files

# How much a folder keeps, of what was used last; a start needs some 20 MB.
_MOST_BYTES = 500_000_000


class ProgramCache(NamedTuple):
  """Values of one kind of start, by name, and values that all starts share.

  Values are pickled, so they are only read from a folder and files that no
  other user can write to, and after their checksum. Any other value is deleted,
  and counts as missing.
  """

  folder: pathlib.Path  # Of all values.
  # Of the kind of start, as `fingerprints.fingerprint_digest` returns it.
  key: str

  def has(self, name: str) -> bool:
    """Returns whether a value of this start is there; it may be damaged."""
    return (self.folder / f"{self.key}-{name}").exists()

  def read(self, name: str) -> Any:
    """Returns a value of this start, or None if it isn't there."""
    return self.read_shared(f"{self.key}-{name}")

  def write(self, name: str, value: object) -> bool:
    """Writes a value of this start, and returns whether that could be done."""
    return self.write_shared(f"{self.key}-{name}", value)

  def read_shared(self, name: str) -> Any:
    """Returns a value that starts share, or None if it isn't there."""
    path = self.folder / name
    try:
      _check_private(self.folder)
    except OSError as error:
      logging.debug("%s isn't read: %s", path, error)
      return None
    try:
      _check_private(path)
      data = path.read_bytes()
      checksum, pickled = data[:32], data[32:]
      if hashlib.sha256(pickled).digest() != checksum:
        raise ValueError("its checksum is another")
      os.utime(path)  # The latest used ones are kept.
      return pickle.loads(pickled)
    except Exception as error:
      logging.debug("%s is deleted if it's there: %s", path, error)
      with contextlib.suppress(OSError):
        path.unlink()
      return None

  def write_shared(self, name: str, value: object) -> bool:
    """Writes a value for all starts, and returns whether that could be done."""
    path = self.folder / name
    try:
      pickled = pickle.dumps(value)
      self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
      _check_private(self.folder)
      with files.file_written_whole(path) as temporary:
        temporary.chmod(0o600)  # The umask may allow others more.
        temporary.write_bytes(hashlib.sha256(pickled).digest() + pickled)
    except Exception as error:
      logging.debug("%s can't be written: %s", path, error)
      return False
    forget_unused_programs(self.folder)
    return True


def forget_unused_programs(folder: pathlib.Path, pattern: str = "*") -> None:
  """Deletes files of a folder beyond half a gigabyte, those used longest ago.

  Args:
    folder: of a `ProgramCache`, or jax's own.
    pattern: of the names of files that are counted and may be deleted.
  """
  # Another process may tidy at the same time.
  with contextlib.suppress(OSError):
    found = [(x.stat(), x) for x in folder.glob(pattern)]
    # jax doesn't note when it reads a file, but most file systems do.
    found.sort(key=lambda x: max(x[0].st_atime, x[0].st_mtime), reverse=True)
    size = 0
    for stat, path in found:
      size += stat.st_size
      if size > _MOST_BYTES:
        path.unlink()


def _check_private(path: pathlib.Path) -> None:
  """Raises PermissionError where other users may have written."""
  reason = files.why_file_not_private(os.lstat(path))
  if reason is not None:
    raise PermissionError(reason)
