"""Notes checksums of a checkpoint's files, and compares them.

A checkpoint counts as damaged only if its checksums prove it. All other errors
are raised: a file that can't be read now may be readable tomorrow.
"""

import json
import pathlib
import zlib

NAME = "checksums.json"
"""Name of the file of checksums in the checkpoint's directory."""

_BLOCK = 1 << 20


def write_checksums(folder: pathlib.Path) -> None:
  """Notes what the files of a checkpoint hold."""
  checksums = {
    path.relative_to(folder).as_posix(): _crc32(path)
    for path in sorted(folder.rglob("*"))
    if path.is_file()}
  (folder / NAME).write_text(json.dumps(checksums))


def checksum_damage(folder: pathlib.Path) -> str | None:
  """Returns how the files of a checkpoint differ from what was noted.

  There may be no checksums where a kill came while qdrl_haiku 0.4 wrote them;
  then no difference is found.
  """
  if _is_missing(folder, NAME):
    return None
  try:
    noted = dict(json.loads((folder / NAME).read_bytes()))
  except (TypeError, ValueError):
    return f"{NAME} is cut short or garbled"
  for name, checksum in noted.items():
    if _is_missing(folder, name):
      return f"{name} is missing"
    if _crc32(folder / name) != checksum:
      return f"{name} has other bytes"
  return None


def _is_missing(folder: pathlib.Path, name: str) -> bool:
  """Returns whether there is no such file in a directory that is there."""
  try:
    with (folder / name).open("rb"):
      return False
  except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
    folder.stat()  # Raises where all is gone, as with a lost mount.
    return True


def _crc32(path: pathlib.Path) -> int:
  checksum = 0
  with path.open("rb") as file:
    while block := file.read(_BLOCK):
      checksum = zlib.crc32(block, checksum)
  return checksum
