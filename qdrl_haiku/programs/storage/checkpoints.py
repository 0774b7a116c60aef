"""Checkpoints by orbax: atomic, one directory per step, with checksums."""

import contextlib
import errno
import importlib
import logging
import os
import pathlib
import shutil
import sys
from collections.abc import Collection, Iterator

import jax

from qdrl_haiku.distributed import hosts
from qdrl_haiku.programs.storage import checksums, orbax_paths, stored_trees
from qdrl_haiku.programs.storage.strict_json import Record
from qdrl_haiku.trees import named_tree_leaves
from qdrl_haiku.types import Tree

# Prefixes of checkpoints that were set aside, and of those being deleted; the
# next run deletes what a kill left of the latter.
_DAMAGED, _DELETED = "damaged-", "deleted-"
_Shapes = dict[str, tuple[int, ...]]


class DamagedCheckpoint(ValueError):
  """Says that a checkpoint isn't what was written, as checksums prove."""


class Checkpoints:
  """The checkpoints in one directory.

  A checkpoint is a few named trees of arrays and one JSON record.
  """

  def __init__(
    self, path: str | os.PathLike[str], writes: bool = False
  ) -> None:
    """Opens a directory."""
    # Here, since importing it takes long.
    self._ocp = ocp = importlib.import_module("orbax.checkpoint")
    self._verified: set[int] = set()
    self._path = pathlib.Path(path).absolute()
    if writes:
      self._path.mkdir(parents=True, exist_ok=True)
    if writes and hosts.is_first_host():
      for deleted in self._path.glob(f"{_DELETED}*"):
        shutil.rmtree(deleted)
    # The path that orbax gets.
    self._plain, self._forget_plain = orbax_paths.plain_orbax_path(
      self._path, self)
    # orbax warns that it only reads.
    with contextlib.nullcontext() if writes else _quiet():
      options = ocp.CheckpointManagerOptions(
        # The arrays are donated to the next generation, which must not
        # overwrite what is still being written.
        enable_async_checkpointing=False, read_only=not writes,
        # Those of a run that was killed while it wrote.
        cleanup_tmp_directories=writes)
      self._manager = ocp.CheckpointManager(self._plain, options=options)

  def steps(self) -> list[int]:
    """Returns the steps of the checkpoints, the latest first."""
    return sorted(self._manager.all_steps(), reverse=True)

  def save(self, step: int, trees: dict[str, Tree], record: Record) -> None:
    """Writes a checkpoint, whole or not at all; the first one is read back."""
    args = self._ocp.args
    items = {
      # In a dict, because orbax takes no single array, and a state may be one.
      name: args.StandardSave({"tree": stored_trees.to_stored_tree(tree)})
      for name, tree in trees.items()}
    try:
      with _quiet():
        written = self._manager.save(
          step, args=args.Composite(record=args.JsonSave(record), **items))
      if not written:
        raise OSError(f"there is {self.steps()[0]} already")
      if hosts.is_first_host():
        checksums.write_checksums(self._path / str(step))
      if self.steps() == [step]:
        self._read_back(step, trees)
    # A disk that is full makes orbax and tensorstore raise nearly anything.
    except Exception as error:
      is_jax = isinstance(error, jax.errors.JaxRuntimeError)
      if is_jax and jax.process_count() > 1:
        raise
      what = f"checkpoint {step} can't be written"
      raise self._os_error(what, error) from error

  def num_rows(self, step: int, name: str) -> int:
    """Returns how many rows the arrays of a tree have in a checkpoint."""
    with self._reading(step):
      return next(iter(self._stored_shapes(step, name).values()))[0]

  def restore(
    self, step: int, like: dict[str, Tree], resized: Collection[str] = ()
  ) -> dict[str, Tree]:
    """Reads trees; resized ones may have another number of rows."""
    args = self._ocp.args
    wanted = {
      name: {"tree": jax.tree.map(stored_trees.stored_tree_leaf, tree)}
      for name, tree in like.items()}
    with self._reading(step):
      found = {name: self._stored_shapes(step, name) for name in like}
    # Or orbax would leave reads unfinished, whose complaints fill pages.
    for name, tree in wanted.items():
      what = f"{name} of checkpoint {step}"
      _check_shapes(what, found[name], _shapes(tree), name in resized)
    items = {
      name: args.StandardRestore(tree, strict=name not in resized)
      for name, tree in wanted.items()}
    with self._reading(step):
      restored = self._manager.restore(step, args=args.Composite(**items))
    return {
      name: stored_trees.from_stored_tree(restored[name]["tree"], like=tree)
      for name, tree in like.items()}

  def record(self, step: int) -> Record:
    """Reads the JSON record of a checkpoint."""
    args = self._ocp.args
    wanted = args.Composite(record=args.JsonRestore())
    with self._reading(step):
      return self._manager.restore(step, args=wanted)["record"]

  def keep(self, steps: Collection[int]) -> None:
    """Deletes all checkpoints but some; a kill leaves none of them in part."""
    unwanted = set(self.steps()) - set(steps)
    if not unwanted:
      return
    if hosts.is_first_host():
      for step in sorted(unwanted):
        deleted = self._path / f"{_DELETED}{step}"
        (self._path / str(step)).rename(deleted)
        shutil.rmtree(deleted)
    hosts.wait_for_all_hosts("checkpoints are deleted")
    self._verified -= unwanted
    self._manager.reload()

  def set_aside(self, step: int) -> pathlib.Path:
    """Renames a checkpoint, so that it no longer counts as one."""
    aside = self._path / f"{_DAMAGED}{step}"
    count = 1
    while aside.exists():
      count += 1
      aside = self._path / f"{_DAMAGED}{step}-{count}"
    hosts.wait_for_all_hosts("checkpoint is damaged")
    if hosts.is_first_host():
      (self._path / str(step)).rename(aside)
    hosts.wait_for_all_hosts("checkpoint is set aside")
    self._verified.discard(step)
    self._manager.reload()
    return aside

  def has_set_aside(self) -> bool:
    """Returns whether any checkpoint was set aside."""
    return any(self._path.glob(f"{_DAMAGED}*"))

  def close(self) -> None:
    """Ends the manager's threads."""
    self._manager.close()
    self._forget_plain()

  def _stored_shapes(self, step: int, name: str) -> _Shapes:
    """Returns shapes of a tree's leaves by path; none if there is no tree."""
    folder = self._plain / str(step) / name
    return (
      _shapes(orbax_paths.orbax_metadata(folder)) if folder.exists() else {})

  @contextlib.contextmanager
  def _reading(self, step: int) -> Iterator[None]:
    """Says which checkpoint can't be read, and whether it's damaged."""
    try:
      # Before orbax stumbles over damage, which would leave reads unfinished.
      if step not in self._verified:
        self._verify(step)
      yield
    except (DamagedCheckpoint, MemoryError, jax.errors.JaxRuntimeError):
      raise
    # orbax, tensorstore and json raise nearly anything.
    except Exception as error:
      what = f"checkpoint {step} can't be read"
      fix = ""
      if not os.path.exists(self._path / str(step) / checksums.NAME):
        fix = (
          "; a kill left it without checksums, which would tell whether it is "
          "damaged; rename it to take the one before")
      raise self._os_error(what, error, fix) from error

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

  def _read_back(self, step: int, names: Collection[str]) -> None:
    """Sets the first checkpoint aside and raises if a tree can't be read."""
    error = None
    try:
      for name in names:
        orbax_paths.read_smallest_orbax_array(self._plain / str(step) / name)
    except Exception as raised:
      error = raised
    if hosts.any_host(error is not None):
      raise OSError(
        "it can't be read back, so choose another directory; it is set aside "
        f"as {self.set_aside(step).name} ({self._first_line(error)})")

  def _first_line(self, error: Exception | None) -> str:
    """Returns the first line of an error, of the path that the user knows."""
    text = str(error).replace(str(self._plain), str(self._path))
    return (text.splitlines() or [type(error).__name__])[0][:200]

  def _os_error(self, what: str, error: Exception, fix: str = "") -> OSError:
    """Returns an error of the same number, with a message and the path."""
    number = getattr(error, "errno", None) or errno.EIO
    message = f"{what}: {self._first_line(error)}{fix}"
    return OSError(number, message, str(self._path))


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
