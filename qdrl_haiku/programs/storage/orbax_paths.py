"""Lets orbax write and read directories, whatever their names are.

Where orbax looks for the parts of a checkpoint, etils takes the whole path for
a glob pattern. Below `a[x]` it finds no part, and orbax then merges none,
without an error. tensorstore takes a backslash for `/`, and refuses a path that
looks like a URL.
"""

import os
import pathlib
import re
import weakref
from collections.abc import Callable

import jax
import numpy as np

from qdrl_haiku.types import Tree

# Paths of letters, digits and marks that mean nothing to any of them.
_PLAIN = re.compile(r"(/[\w.+=,@-]+)+")
# Where Linux shows a process the directories that it holds open.
_OPEN = pathlib.Path("/proc/self/fd")


def plain_orbax_path(
  path: pathlib.Path, owner: object
) -> tuple[pathlib.Path, Callable[[], object]]:
  """Returns a path to a directory that is no pattern and no URL.

  The directory is held open where need be, until the function that is returned
  too is called, or the owner is gone.
  """
  if _PLAIN.fullmatch(str(path)):
    return path, lambda: None
  if not _OPEN.is_dir():
    raise OSError(
      f"{str(path)!r} has characters that checkpoints can't be written to "
      "without /proc; choose a directory of letters and digits.")
  descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
  return (
    _OPEN / str(descriptor), weakref.finalize(owner, os.close, descriptor))


def orbax_metadata(folder: pathlib.Path) -> Tree:
  """Reads shapes and dtypes of a tree."""
  import orbax.checkpoint as ocp  # Here, since importing it takes long.

  found = ocp.StandardCheckpointHandler().metadata(folder)
  return getattr(found, "tree", found)


def read_smallest_orbax_array(folder: pathlib.Path) -> None:
  """Reads the smallest array of a tree, to see whether it can be read."""
  import orbax.checkpoint as ocp

  found, structure = jax.tree.flatten(orbax_metadata(folder))
  if not found:
    return
  smallest = int(np.argmin([np.prod(x.shape) for x in found]))
  leaves = [ocp.PLACEHOLDER] * len(found)
  leaves[smallest] = found[smallest]
  to_numpy = [ocp.RestoreArgs(restore_type=np.ndarray)] * len(found)
  ocp.PyTreeCheckpointHandler().restore(
    folder,
    args=ocp.args.PyTreeRestore(
      item=jax.tree.unflatten(structure, leaves),
      restore_args=jax.tree.unflatten(structure, to_numpy)))
