"""Short texts that differ where what a program is traced from may differ.

That is told of what is ours and of what is installed alone, by versions, files
and settings: of a user's code nobody can say what it has read.
"""

import functools
import hashlib
import importlib.util
import json
import os
import pathlib
import platform
import sys
import sysconfig
from typing import Any

import jax
import jaxlib

import qdrl_haiku

# Whose functions are traced. Of all installed packages versions count; of
# these files do too, since people edit them where they lie.
_TRACED = (
  "qdrl_haiku", "brax", "distrax", "evosax", "haiku", "mujoco.mjx", "optax",
  "rlax",
)  # fmt: skip
# Of the environment: settings of jax, of XLA, of BLAS and of this package.
_VARIABLES = ("JAX_", "LIBTPU_", "OMP_", "QDRL_", "XLA_")
# Where programs are kept changes nothing in them.
_PLACES = ("JAX_COMPILATION_CACHE_DIR", "QDRL_TESTS_CACHE")
# Where packages are installed; and what Python runs there by itself.
_INSTALLED = {"site-packages", "dist-packages"}
_CUSTOMIZING = ("sitecustomize", "usercustomize")


def digest(parts: Any) -> str:
  """Returns a short text for some parts."""
  text = json.dumps(parts, sort_keys=True)
  return hashlib.sha256(text.encode()).hexdigest()[:32]


def of_process() -> dict[str, Any]:
  """Returns what all programs of this process depend on.

  That is the machine and its devices, all installed packages by their versions,
  settings of the process, and the files of this package and of those whose
  functions are traced.
  """
  return of_compiler() | {
    "installed": _installed(),
    "jax": sorted(
      (name, str(value))
      for name, value in jax.config.values.items()
      if "cache" not in name
    ),
    "traced": _contents(),
  }


def of_compiler() -> dict[str, Any]:
  """Returns what a program depends on beside what is compiled.

  That is the machine and its devices, the compiler, and what the environment
  tells it.
  """
  return {
    "machine": (platform.machine(), _processor()),
    "devices": [
      (x.platform, x.device_kind, x.process_index) for x in jax.devices()
    ],
    "versions": (
      platform.python_version(), jax.__version__, jaxlib.__version__
    ),
    "variables": sorted(
      (name, value)
      for name, value in os.environ.items()
      if name.startswith(_VARIABLES) and name not in _PLACES
    ),
  }


def users_module() -> str | None:
  """Returns a module in this process that is neither installed nor ours.

  It may have replaced functions of those that are, as may who has begun the
  process otherwise than by a launcher.
  """
  package = os.path.dirname(qdrl_haiku.__file__)
  ours = (package, os.path.join(os.path.dirname(package), "launchers"))
  pythons = map(sysconfig.get_path, ("stdlib", "platstdlib", "scripts"))
  places = tuple(os.path.join(place, "") for place in (*ours, *pythons))
  for name, module in sorted(sys.modules.items()):
    path = getattr(module, "__dict__", {}).get("__file__")
    if path is None and name != "__main__":
      continue  # Of the interpreter, or a folder.
    path = path or ""
    if _INSTALLED.isdisjoint(path.split(os.sep)):
      paths = (path, os.path.realpath(path))
      is_known = any(x.startswith(places) for x in paths)
    else:
      is_known = name not in _CUSTOMIZING
    if not is_known:
      return name
  return None


@functools.cache
def _contents() -> str:
  """Returns a digest of what the files of `_TRACED` hold."""
  hashed = hashlib.sha256()
  for package in _TRACED:
    spec = importlib.util.find_spec(package)
    for place in (spec and spec.submodule_search_locations) or ():
      for path in sorted(pathlib.Path(place).rglob("*")):
        if path.suffix in (".py", ".xml"):
          hashed.update(f"{package} {path.relative_to(place)}\n".encode())
          hashed.update(hashlib.sha256(path.read_bytes()).digest())
  return hashed.hexdigest()


def _installed() -> list[str]:
  """Returns names and versions of all installed packages."""
  return sorted(
    name
    for place in {sysconfig.get_path(x) for x in ("purelib", "platlib")}
    for name in os.listdir(place)
    if name.endswith(".dist-info")
  )


def _processor() -> str:
  """Returns what the processor can do, which compiled code depends on."""
  try:
    lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
  except OSError:  # As on a Mac.
    return platform.processor()
  wanted = ("model name", "flags", "Features")
  return "\n".join(sorted({x for x in lines if x.startswith(wanted)}))
