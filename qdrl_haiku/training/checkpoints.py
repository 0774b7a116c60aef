"""Checkpoints by orbax: atomic, one directory per step."""

import os
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp


class Checkpoints:
  """The checkpoints in one directory.

  A checkpoint is a few named trees of arrays and one JSON record.
  """

  def __init__(
    self, path: str | os.PathLike[str], max_checkpoints: int
  ) -> None:
    """Opens a directory, which need not exist.

    Args:
      path: of the directory.
      max_checkpoints: how many to keep, the latest ones, >= 1.
    """
    self._manager = ocp.CheckpointManager(
      pathlib.Path(path).absolute(),
      options=ocp.CheckpointManagerOptions(
        max_to_keep=max_checkpoints,
        # The arrays are donated to the next generation, which must not
        # overwrite what is still being written.
        enable_async_checkpointing=False,
      ),
    )

  def latest(self) -> int | None:
    """The step of the latest checkpoint, None if there is none."""
    return self._manager.latest_step()

  def save(
    self, step: int, trees: dict[str, Any], record: dict[str, Any]
  ) -> None:
    """Writes a checkpoint, whole or not at all; one that is there stays.

    Args:
      step: its name.
      trees: of arrays, typed keys included.
      record: of plain Python values.
    """
    items = {
      # In a dict, because orbax takes no single array, and a state may be one.
      name: ocp.args.StandardSave({"tree": _without_keys(tree)})
      for name, tree in trees.items()
    }
    if step in self._manager.all_steps():
      return
    self._manager.save(
      step,
      args=ocp.args.Composite(record=ocp.args.JsonSave(record), **items),
    )

  def restore(self, step: int, like: dict[str, Any]) -> dict[str, Any]:
    """Reads trees of a checkpoint.

    Args:
      step: of the checkpoint.
      like: which trees, and of what structure, shapes, dtypes and shardings:
        arrays, or `jax.ShapeDtypeStruct`s where there is no typed key.

    Returns:
      The trees.

    Raises:
      ValueError: if the checkpoint has trees of other structures or shapes.
    """
    for name, tree in like.items():
      self._check_shapes(step, name, _without_keys(tree))
    items = {
      name: ocp.args.StandardRestore({"tree": _without_keys(tree)})
      for name, tree in like.items()
    }
    restored = self._manager.restore(step, args=ocp.args.Composite(**items))
    return {
      name: _with_keys(restored[name]["tree"], like=tree)
      for name, tree in like.items()
    }

  def _check_shapes(self, step: int, name: str, tree: Any) -> None:
    """Refuses a tree of another structure before orbax stumbles over it.

    orbax would leave reads unfinished, and their complaints fill pages.
    """
    metadata = ocp.StandardCheckpointHandler().metadata(
      self._manager.directory / str(step) / name
    )
    found = _shapes(getattr(metadata, "tree", metadata))
    wanted = _shapes({"tree": tree})
    differing = sorted(
      path
      for path in found.keys() | wanted.keys()
      if found.get(path) != wanted.get(path)
    )
    if differing:
      path = differing[0]
      raise ValueError(
        f"{name} of checkpoint {step} has another structure: {path} has shape "
        f"{found.get(path)} there, and {wanted.get(path)} here."
      )

  def record(self, step: int) -> dict[str, Any]:
    """Reads the JSON record of a checkpoint.

    Args:
      step: of the checkpoint.

    Returns:
      The record.
    """
    restored = self._manager.restore(
      step, args=ocp.args.Composite(record=ocp.args.JsonRestore())
    )
    return restored["record"]

  def close(self) -> None:
    """Ends the manager's threads."""
    self._manager.close()


def _shapes(tree: Any) -> dict[str, tuple[int, ...]]:
  """Shapes of leaves, by paths that are the same for tuples and dicts."""
  return {
    jax.tree_util.keystr(path, simple=True, separator="."): tuple(x.shape)
    for path, x in jax.tree_util.tree_leaves_with_path(tree)
  }


def _is_key(x: Any) -> bool:
  return jnp.issubdtype(x.dtype, jax.dtypes.prng_key)


def _without_keys(tree: Any) -> Any:
  """Typed keys become the integers they consist of."""

  def convert(x: Any) -> Any:
    return jax.random.key_data(x) if _is_key(x) else x

  return jax.tree.map(convert, tree)


def _with_keys(tree: Any, like: Any) -> Any:
  """The reverse: integers become keys where `like` has keys."""

  def convert(x: Any, like: Any) -> Any:
    if not _is_key(like):
      return x
    return jax.random.wrap_key_data(x, impl=jax.random.key_impl(like))

  return jax.tree.map(convert, tree, like)
