"""Directories that orbax can write and read, whatever their names are.

etils takes the whole path for a pattern where orbax looks for the parts of a
checkpoint: below `a[x]` it finds none, and leaves out what joins them, without
an error. tensorstore takes a backslash for `/`, and refuses what looks like a
URL.
"""

import os
import pathlib
import re
import weakref
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

# Paths of letters, digits and marks that mean nothing to any of them.
_PLAIN = re.compile(r"(/[\w.+=,@-]+)+")
# Where Linux shows a process the directories that it holds open.
_OPEN = pathlib.Path("/proc/self/fd")


def plain(
  path: pathlib.Path, owner: Any
) -> tuple[pathlib.Path, Callable[[], Any]]:
  """Returns a path to a directory that is no pattern and no URL."""
  if _PLAIN.fullmatch(str(path)):
    return path, lambda: None
  if not _OPEN.is_dir():
    raise OSError(
      f"{str(path)!r} has characters that checkpoints can't be written to "
      "without /proc; choose a directory of letters and digits."
    )
  descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
  return (
    _OPEN / str(descriptor), weakref.finalize(owner, os.close, descriptor)
  )


def read_smallest(folder: pathlib.Path) -> None:
  """Reads the smallest array of a tree, to see whether it can be read."""
  import orbax.checkpoint as ocp  # Here, since importing it takes long.

  metadata = ocp.StandardCheckpointHandler().metadata(folder)
  tree = getattr(metadata, "tree", metadata)
  sizes = [np.prod(x.shape) for x in jax.tree.leaves(tree)]
  if not sizes:
    return
  leaves = [ocp.PLACEHOLDER] * len(sizes)
  smallest = int(np.argmin(sizes))
  leaves[smallest] = jax.tree.leaves(tree)[smallest]
  ocp.PyTreeCheckpointHandler().restore(
    folder,
    args=ocp.args.PyTreeRestore(
      item=jax.tree.unflatten(jax.tree.structure(tree), leaves),
      restore_args=jax.tree.map(
        lambda _: ocp.RestoreArgs(restore_type=np.ndarray), tree
      ),
    ),
  )
