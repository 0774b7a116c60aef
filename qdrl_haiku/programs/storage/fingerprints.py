"""Computes digests of all that a program without a user's code depends on.

Versions, files and settings determine what this package and installed ones do.
They don't determine what a user's code does: it may have read anything.
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

import jax
import jaxlib

import qdrl_haiku
from qdrl_haiku.programs.storage.strict_json import Record

# Packages whose functions are traced. Of all that is installed the version
# counts; of these the files do too, since people edit them where they lie.
_TRACED = (
  "qdrl_haiku", "brax", "distrax", "evosax", "haiku", "mujoco.mjx", "optax",
  "rlax")
# The programs that start runs, beside the package where it isn't installed.
_LAUNCHERS = pathlib.Path(qdrl_haiku.__file__).parents[1] / "launchers"
# Settings of jax, of XLA, of BLAS and of this package.
_VARIABLES = ("JAX_", "LIBTPU_", "OMP_", "QDRL_", "XLA_")
# Where programs are kept changes nothing in them.
_PLACES = ("JAX_COMPILATION_CACHE_DIR", "QDRL_TESTS_CACHE")
# Modules of users' that Python imports by itself.
_CUSTOMIZING = ("sitecustomize", "usercustomize")


def fingerprint_digest(parts: object) -> str:
  """Returns a short text for JSON values."""
  text = json.dumps(parts, sort_keys=True)
  return hashlib.sha256(text.encode()).hexdigest()[:32]


def fingerprint_of_process() -> Record:
  """Returns what all programs of this process depend on, code included."""
  config = jax.config.values.items()
  return fingerprint_of_compiler() | {
    "installed": _installed(),
    "jax": sorted((x, str(value)) for x, value in config if "cache" not in x),
    "traced": _contents()}


def fingerprint_of_compiler() -> Record:
  """Returns what machine code depends on beside what is compiled."""
  return {
    "machine": (platform.machine(), _processor()),
    "devices": [
      (x.platform, x.device_kind, x.process_index) for x in jax.devices()],
    "versions": (
      platform.python_version(), jax.__version__, jaxlib.__version__),
    "variables": sorted(
      (name, value)
      for name, value in os.environ.items()
      if name.startswith(_VARIABLES) and name not in _PLACES)}


def module_without_fingerprint() -> str | None:
  """Returns a module of this process that is neither installed nor ours.

  It may have replaced functions of other modules, as may a main program that
  isn't a launcher.
  """
  package = pathlib.Path(qdrl_haiku.__file__).parent
  pythons = map(sysconfig.get_path, ("stdlib", "platstdlib", "scripts"))
  places = [*map(str, (package, _LAUNCHERS)), *pythons]
  for name, module in sorted(sys.modules.items()):
    path = getattr(module, "__dict__", {}).get("__file__")
    if not path:
      if name == "__main__":
        return name
      continue  # A module of the interpreter, or a folder.
    is_known = any(
      pathlib.Path(x).is_relative_to(place)
      for x in (path, os.path.realpath(path))
      for place in places)
    if {"site-packages", "dist-packages"}.intersection(path.split(os.sep)):
      is_known = name not in _CUSTOMIZING
    if not is_known:
      return name
  return None


@functools.cache
def _contents() -> str:
  """Returns a digest of what the files of `_TRACED` and launchers hold."""
  hashed = hashlib.sha256()
  places = [("launchers", str(_LAUNCHERS))]
  for package in _TRACED:
    spec = importlib.util.find_spec(package)
    found = (spec and spec.submodule_search_locations) or ()
    places += [(package, place) for place in found]
  for name, place in places:
    for path in sorted(pathlib.Path(place).rglob("*")):
      # Editors leave links to nothing beside a file that is being changed.
      if path.suffix in (".py", ".xml") and path.exists():
        hashed.update(f"{name} {path.relative_to(place)}\n".encode())
        hashed.update(hashlib.sha256(path.read_bytes()).digest())
  return hashed.hexdigest()


def _installed() -> list[str]:
  """Returns names and versions of all installed packages."""
  return sorted(
    name
    for place in {sysconfig.get_path(x) for x in ("purelib", "platlib")}
    for name in os.listdir(place)
    if name.endswith(".dist-info"))


def _processor() -> str:
  """Returns what the processor can do, which compiled code depends on."""
  try:
    lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
  except OSError:  # As on a Mac.
    return platform.processor()
  wanted = ("model name", "flags", "Features")
  return "\n".join(sorted({x for x in lines if x.startswith(wanted)}))
