"""Lists versions of libraries and devices, for `versions.json`."""

import functools
import importlib.metadata
import sys

import jax

from qdrl_haiku import __version__, platform
from qdrl_haiku.programs.storage.strict_json import Record

_LIBRARIES = (
  "jax", "jaxlib", "dm-haiku", "optax", "rlax", "distrax", "brax",
  "orbax-checkpoint", "numpy")


def library_versions() -> Record:
  """Returns what a run depends on outside its settings."""
  found: Record = {
    "python": sys.version.split()[0], "qdrl_haiku": __version__}
  found |= {name: _version(name) for name in _LIBRARIES}
  found["devices"] = [str(device) for device in jax.devices()]
  found["xla_left_out"] = platform.unknown_to_xla()
  return found


@functools.cache
def _version(name: str) -> str | None:
  """Returns a library's version, which takes time to find."""
  try:
    return importlib.metadata.version(name)
  except importlib.metadata.PackageNotFoundError:
    return None
