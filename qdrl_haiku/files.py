"""Writes files whole or not at all, tells whose may be trusted, reads some."""

import contextlib
import os
import pathlib
import secrets
import stat
import sys
from collections.abc import Iterator, Mapping, Sequence

_MARK = ".tmp"


@contextlib.contextmanager
def file_written_whole(path: str | os.PathLike[str]) -> Iterator[pathlib.Path]:
  """Lets a file be written under another name, and renames it at the end.

  A kill at any moment leaves the old file or the new one, and perhaps a part of
  it at the temporary path, which is random: nobody can put a link there first.
  """
  path = pathlib.Path(path)
  mark = f"{_MARK}-{secrets.token_hex(8)}"
  temporary = path.with_name(f".{path.stem}{mark}{path.suffix}")
  temporary.touch(exist_ok=False)  # Exclusively, so it follows no link.
  try:
    yield temporary
    os.replace(temporary, path)
  finally:
    temporary.unlink(missing_ok=True)


def is_file_cut_short(path: pathlib.Path) -> bool:
  """Returns whether a file is a temporary one that a kill left behind."""
  return path.name.startswith(".") and _MARK in path.name


def why_file_not_private(status: os.stat_result) -> str | None:
  """Returns why others may have written a file or folder; None if they can't.

  The status is that of `os.lstat`, so that a link counts as others'.
  """
  if stat.S_ISLNK(status.st_mode):
    return "it is a link"
  if sys.platform == "win32":  # Where neither number says anything.
    return None
  if status.st_uid != os.geteuid():
    return "it belongs to another user"
  if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
    return f"others may write to it (mode {stat.S_IMODE(status.st_mode):o})"
  return None


def control_group_texts(
  names: Mapping[str, Sequence[str]], root: pathlib.Path
) -> list[str]:
  """Returns what files say of the control groups that this process is in.

  The limits of the groups above a group hold for it too. In a container, /proc
  may name a group that is hidden there; the topmost one is then its own.

  Args:
    names: of the files, by controller; "" is version 2, which names none.
    root: of the file system.

  Returns:
    A text for each group that has them, its files' joined by spaces.
  """
  texts = []
  for line in _text(root / "proc/self/cgroup").splitlines():
    _, controllers, path = line.split(":", 2)
    for controller in names.keys() & set(controllers.split(",")):
      folder = root / "sys/fs/cgroup" / controller / path.lstrip("/")
      for group in (folder, *folder.parents):
        parts = [_text(group / name).strip() for name in names[controller]]
        texts.append(" ".join(parts))
  return texts


def _text(path: pathlib.Path) -> str:
  """Returns what a file holds, nothing if it can't be read."""
  try:
    return path.read_text()
  except OSError:
    return ""
