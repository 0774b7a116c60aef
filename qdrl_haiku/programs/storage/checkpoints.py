"""Checkpoints: directories by step, whole or not there, with checksums.

orbax writes and reads their trees of arrays. Beside it there are a record in
JSON and the files' checksums; then a rename makes all of it a checkpoint.
"""

import contextlib
import errno
import importlib
import json
import logging
import os
import pathlib
import re
import shutil
import sys
import tempfile
from collections.abc import Collection, Iterator
from typing import Any

import jax

from qdrl_haiku.distributed import hosts
from qdrl_haiku.programs.storage import checksums, stored_trees
from qdrl_haiku.trees import named_tree_leaves
from qdrl_haiku.types import Record, Tree

# Prefixes of checkpoints that were set aside, and of partial ones, which are
# being written or deleted; the next run deletes what a kill left of them.
_DAMAGED, _PARTIAL = "damaged-", "partial-"
_RECORD = "record/metadata"
# What orbax takes for no pattern and no URL, whose parts it would not find; on
# Windows a drive comes first.
_PLAIN = re.compile(r"([A-Za-z]:)?(/[\w .+=,@~-]+)+")
_Shapes = dict[str, tuple[int, ...]]


class DamagedCheckpoint(ValueError):
  """Says that a checkpoint isn't what was written, as checksums prove."""


class Checkpoints:
  """The checkpoints in one directory: named trees and one JSON record each."""

  def __init__(
    self, path: str | os.PathLike[str], writes: bool = False
  ) -> None:
    # Here, since importing it takes long.
    self._ocp = importlib.import_module("orbax.checkpoint")
    self._verified: set[int] = set()
    self._path = pathlib.Path(path).absolute()
    if writes:
      self._path.mkdir(parents=True, exist_ok=True)
    if writes and hosts.is_first_host():
      for partial in self._path.glob(f"{_PARTIAL}*"):
        shutil.rmtree(partial)

  def steps(self) -> list[int]:
    """Returns the steps of the checkpoints, the latest first."""
    names = (x.name for x in self._path.iterdir())
    return sorted((int(x) for x in names if x.isdigit()), reverse=True)

  def save(self, step: int, trees: dict[str, Tree], record: Record) -> None:
    """Writes a checkpoint, whole or not at all.

    Args:
      step: names the checkpoint; environment steps per agent.
      trees: by name, each restored by itself.
      record: JSON, stored beside them.
    """
    partial, is_first = self._path / f"{_PARTIAL}{step}", not self.steps()
    with self._handing(f"checkpoint {step} can't be written") as path, _quiet():
      if hosts.is_first_host():
        (partial / _RECORD).parent.mkdir(parents=True)
        (partial / _RECORD).write_text(json.dumps(record))
      hosts.wait_for_all_hosts("checkpoint begins")
      for name, tree in trees.items():
        # In a dict, because orbax takes no single array, as a state may be.
        stored = {"tree": stored_trees.to_stored_tree(tree)}
        folder = path / partial.name / name
        with self._ocp.Checkpointer(self._handler()) as checkpointer:
          checkpointer.save(folder, args=self._ocp.args.StandardSave(stored))
        if is_first:  # orbax has been seen to leave out parts silently.
          _check_shapes(name, self._shapes_in(folder), _shapes(stored), False)
      hosts.wait_for_all_hosts("checkpoint was looked at")
      if hosts.is_first_host():
        checksums.write_checksums(partial)
        partial.rename(self._path / str(step))
      hosts.wait_for_all_hosts("checkpoint is written")

  def num_rows(self, step: int, name: str) -> int:
    """Returns how many rows the arrays of a tree have in a checkpoint."""
    with self._reading(step) as folder:
      return next(iter(self._shapes_in(folder / name).values()))[0]

  def restore(
    self, step: int, like: dict[str, Tree], resized: Collection[str] = ()
  ) -> dict[str, Tree]:
    """Reads trees of a checkpoint.

    Args:
      step: of the checkpoint.
      like: by name, trees of arrays, or their shapes, as were stored.
      resized: names of trees that may have another number of rows.

    Raises:
      DamagedCheckpoint: if it isn't what was written.
      ValueError: if what was written is of other shapes.
    """
    wanted = {
      name: {"tree": stored_trees.to_stored_tree(tree)}
      for name, tree in like.items()}
    with self._reading(step) as folder:
      found = {name: self._shapes_in(folder / name) for name in like}
    # Or orbax would leave reads unfinished, whose complaints fill pages.
    for name, tree in wanted.items():
      what = f"{name} of checkpoint {step}"
      _check_shapes(what, found[name], _shapes(tree), name in resized)
    restored = {}
    with self._reading(step) as folder:
      for name, tree in wanted.items():
        args = self._ocp.args.StandardRestore(tree, strict=name not in resized)
        read = self._handler().restore(folder / name, args=args)
        restored[name] = stored_trees.from_stored_tree(read["tree"], like[name])
    return restored

  def record(self, step: int) -> Record:
    """Reads the JSON record of a checkpoint."""
    with self._reading(step) as folder:
      return json.loads((folder / _RECORD).read_text())

  def keep(self, steps: Collection[int]) -> None:
    """Deletes all checkpoints but some; a kill leaves none of them in part."""
    hosts.wait_for_all_hosts("checkpoints were read")
    self._verified.intersection_update(steps)
    unwanted = set(self.steps()) - set(steps)
    for step in sorted(unwanted) if hosts.is_first_host() else ():
      partial = self._path / f"{_PARTIAL}{step}"
      (self._path / str(step)).rename(partial)
      shutil.rmtree(partial)

  def set_aside(self, step: int) -> pathlib.Path:
    """Renames a checkpoint, so that it no longer counts as one."""
    names = (f"{_DAMAGED}{step}{x and f'-{x}'}" for x in ["", *range(2, 1000)])
    aside = next(x for x in map(self._path.joinpath, names) if not x.exists())
    hosts.wait_for_all_hosts("checkpoint is damaged")
    if hosts.is_first_host():
      (self._path / str(step)).rename(aside)
    hosts.wait_for_all_hosts("checkpoint is set aside")
    self._verified.discard(step)
    return aside

  def has_set_aside(self) -> bool:
    """Returns whether any checkpoint was set aside."""
    return any(self._path.glob(f"{_DAMAGED}*"))

  def _handler(self) -> Any:
    return self._ocp.StandardCheckpointHandler()

  def _shapes_in(self, folder: pathlib.Path) -> _Shapes:
    """Returns shapes of a tree's leaves by path; none if there is no tree."""
    if not folder.exists():
      return {}
    found = self._handler().metadata(folder)
    return _shapes(getattr(found, "tree", found))

  @contextlib.contextmanager
  def _reading(self, step: int) -> Iterator[pathlib.Path]:
    """Returns a checkpoint's folder; says if it's damaged or can't be read."""
    with self._handing(f"checkpoint {step} can't be read") as path:
      # Before orbax stumbles over damage, which would leave reads unfinished.
      if step not in self._verified:
        self._verify(step)
      yield path / str(step)

  @contextlib.contextmanager
  def _handing(self, what: str) -> Iterator[pathlib.Path]:
    """Returns the directory as orbax takes it, and makes OSErrors of others."""
    with contextlib.ExitStack() as stack:
      path = self._path
      if not _PLAIN.fullmatch(path.as_posix()):
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        path = pathlib.Path(folder) / "checkpoints"
        path.symlink_to(self._path, target_is_directory=True)
      try:
        yield path
      except (DamagedCheckpoint, MemoryError, jax.errors.JaxRuntimeError):
        raise
      # orbax, tensorstore and json raise nearly anything, as on a full disk.
      except Exception as error:
        text = str(error).replace(str(path), str(self._path))
        line = (text.splitlines() or [type(error).__name__])[0][:200]
        number = getattr(error, "errno", None) or errno.EIO
        raise OSError(number, f"{what}: {line}", str(self._path)) from error

  def _verify(self, step: int) -> None:
    """Raises if a checkpoint is damaged, or can't be read, for any process."""
    error = damage = None
    try:
      damage = checksums.checksum_damage(self._path / str(step))
    except (MemoryError, OSError) as raised:
      error = raised
    # All processes raise if one does, or the others would wait for it.
    if hosts.any_host(error is not None):
      raise error or OSError("another process can't read it")
    if hosts.any_host(damage is not None):
      raise DamagedCheckpoint(
        f"checkpoint {step} in {self._path} is damaged: "
        f"{damage or 'another process finds it so'}")
    self._verified.add(step)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
  """Silences orbax, tensorstore and their threads, whose errors are raised."""
  before = logging.root.manager.disable, sys.excepthook, sys.unraisablehook
  logging.disable()
  sys.excepthook = lambda *_: None
  sys.unraisablehook = lambda _: None
  try:
    yield
  finally:
    disabled, sys.excepthook, sys.unraisablehook = before
    logging.disable(disabled)


def _check_shapes(
  what: str, found: _Shapes, wanted: _Shapes, is_resized: bool
) -> None:
  """Refuses a tree of another structure, but for rows where it's resized."""
  first = int(is_resized)  # The first axis that must agree.
  for path in sorted(found.keys() | wanted.keys()):
    shapes = found.get(path), wanted.get(path)
    if None in shapes or len({x and x[first:] for x in shapes}) > 1:
      raise ValueError(
        f"{what} has another structure: {path} has shape {shapes[0]} there, "
        f"and {shapes[1]} here.")


def _shapes(tree: Tree) -> _Shapes:
  """Returns leaves' shapes, by names that are alike in tuples and dicts."""
  return {name: tuple(x.shape) for name, x in named_tree_leaves(tree)}
