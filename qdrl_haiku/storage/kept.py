"""What one start of a program found out, kept for the next ones."""

import os
import pathlib
import pickle
import shutil
from typing import Any, NamedTuple

from absl import logging

from qdrl_haiku import files

_SHARED = "shared"
# How many starts, and how many shared values, are remembered, the latest ones.
_MOST = 200


class Kept(NamedTuple):
  """Values of each different start of a program, and values that starts share.

  Whatever is damaged, or of another version, counts as not there. Values are
  pickled, so the folder must be one that nobody else can write to, as that of
  compiled programs must be.

  Attributes:
    folder: of all starts.
    key: of one, such as `fingerprints.digest` returns.
  """

  folder: pathlib.Path
  key: str

  def has(self, name: str) -> bool:
    """Returns whether a value of this start is there; it may be damaged.

    Args:
      name: of the value.
    """
    return self._path(name).exists()

  def read(self, name: str) -> Any:
    """Returns a value of this start, or None if it isn't there.

    Args:
      name: of the value.
    """
    return _read(self._path(name), self._path(name).parent)

  def write(self, name: str, value: Any) -> bool:
    """Writes a value of this start, and returns whether that could be done.

    Args:
      name: of the value.
      value: to be pickled.
    """
    return _write(self._path(name), value) and _forget_oldest(self.folder)

  def read_shared(self, code: str) -> Any:
    """Returns a value that starts share, or None if it isn't there.

    Args:
      code: what it follows from, as `fingerprints.digest` returns.
    """
    path = self._shared(code)
    return _read(path, path)

  def write_shared(self, code: str, value: Any) -> bool:
    """Writes a value for all starts, and returns whether that could be done.

    Args:
      code: what it follows from, as `fingerprints.digest` returns.
      value: to be pickled.
    """
    path = self._shared(code)
    return _write(path, value) and _forget_oldest(path.parent)

  def _path(self, name: str) -> pathlib.Path:
    return self.folder / self.key / f"{name}.pickle"

  def _shared(self, code: str) -> pathlib.Path:
    return self.folder / _SHARED / f"{code}.pickle"


def _read(path: pathlib.Path, used: pathlib.Path) -> Any:
  """Reads a value, and notes that something was used."""
  try:
    with path.open("rb") as file:
      value = pickle.load(file)
    os.utime(used)
    return value
  except FileNotFoundError:
    return None
  except Exception as error:
    logging.debug("%s can't be read: %s", path, error)
    return None


def _write(path: pathlib.Path, value: Any) -> bool:
  try:
    data = pickle.dumps(value)
    path.parent.mkdir(parents=True, exist_ok=True)
    with files.written_whole(path) as temporary:
      temporary.write_bytes(data)
    return True
  except Exception as error:
    logging.debug("%s can't be written: %s", path, error)
    return False


def _forget_oldest(folder: pathlib.Path) -> bool:
  """Deletes what was last used before the latest ones; returns True."""
  try:
    found = [path for path in folder.iterdir() if path.name != _SHARED]
    for path in sorted(found, key=lambda x: x.stat().st_mtime)[:-_MOST]:
      if path.is_dir():
        shutil.rmtree(path)
      else:
        path.unlink()
  except OSError as error:  # Another process has done it.
    logging.debug("%s can't be tidied: %s", folder, error)
  return True
