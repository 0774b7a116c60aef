"""Keeps compiled programs, and shapes, for later runs of the same settings."""

import contextlib
import hashlib
import os
import pathlib
import pickle
from typing import Any, NamedTuple

from absl import logging

from qdrl_haiku import files

# How many files are kept, the latest used ones; a start has up to ten.
_MOST = 500


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
    # Another process may tidy at the same time.
    with contextlib.suppress(OSError):
      found = sorted(self.folder.iterdir(), key=lambda x: x.stat().st_mtime)
      for old in found[:-_MOST]:
        old.unlink()
    return True


def _check_private(path: pathlib.Path) -> None:
  """Raises PermissionError where other users may have written."""
  reason = files.why_file_not_private(os.lstat(path))
  if reason is not None:
    raise PermissionError(reason)
