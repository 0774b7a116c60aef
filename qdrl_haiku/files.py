"""Files that are there whole or not at all."""

import contextlib
import os
import pathlib
from collections.abc import Iterator

_MARK = ".tmp"


@contextlib.contextmanager
def written_whole(path: str | os.PathLike[str]) -> Iterator[pathlib.Path]:
  """Lets a file be written beside its place, which it takes in the end.

  A kill at any moment leaves the old file or the new one; and perhaps a part of
  the latter under another name, see `is_cut_short`.

  Args:
    path: of the file, in a folder that is there.

  Yields:
    Where to write; of the same ending.
  """
  path = pathlib.Path(path)
  temporary = path.with_name(f".{path.stem}{_MARK}{path.suffix}")
  try:
    yield temporary
    os.replace(temporary, path)
  finally:
    temporary.unlink(missing_ok=True)


def is_cut_short(path: pathlib.Path) -> bool:
  """Returns whether a file is what a kill left of one.

  Args:
    path: of the file.
  """
  return path.name.startswith(".") and _MARK in path.name
