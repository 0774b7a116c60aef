"""Lists versions of libraries and devices, for `versions.json`."""

import importlib.metadata
import platform
from typing import Any

import jax

from qdrl_haiku.cpu import xla

_LIBRARIES = (
  "qdrl_haiku",
  "jax",
  "jaxlib",
  "dm-haiku",
  "optax",
  "rlax",
  "distrax",
  "brax",
  "orbax-checkpoint",
  "numpy",
)


def versions() -> dict[str, Any]:
  """Returns what a run depends on outside its settings."""
  found: dict[str, Any] = {"python": platform.python_version()}
  for name in _LIBRARIES:
    try:
      found[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
      found[name] = None
  found["devices"] = [str(device) for device in jax.devices()]
  found["xla_left_out"] = xla.left_out()
  return found
