"""Short texts that differ where what a program is traced from differs."""

import functools
import hashlib
import importlib.util
import os
import pathlib
import pickle
import platform
import sys
import sysconfig
import types
from collections.abc import Iterable, Mapping
from typing import Any

import jax
import jaxlib
import numpy as np

import qdrl_haiku

# Whose functions are traced. Of all installed packages versions count; of
# these files do too, since people edit them where they lie.
_TRACED = ("brax", "distrax", "haiku", "mujoco.mjx", "optax", "rlax")
# Of the environment: settings of jax, of XLA, of BLAS and of this package.
_VARIABLES = ("JAX_", "LIBTPU_", "OMP_", "QDRL_", "XLA_")
# Where programs are kept changes nothing in them.
_PLACES = ("JAX_COMPILATION_CACHE_DIR", "QDRL_TESTS_CACHE")


class Unknown(Exception):
  """Something holds a value of which nobody can say when it differs."""


def digest(parts: Any) -> str:
  """Returns a short text for some parts.

  Args:
    parts: numbers, texts, arrays, and anything made of them; an object counts
      as its attributes, a function as its code and what it has closed over.

  Returns:
    The text: the same in every process, for the same parts.

  Raises:
    Unknown: if a part is of another kind.
  """
  hashed = hashlib.sha256()
  _add(hashed, parts, {})
  return hashed.hexdigest()[:32]


def of_process() -> dict[str, Any]:
  """Returns what all programs of this process depend on.

  That is the machine and its devices, all installed packages by their versions,
  settings of the process, and the source of this package and of those whose
  functions are traced.
  """
  return of_compiler() | {
    "installed": _installed(),
    "jax": sorted(
      (name, str(value))
      for name, value in jax.config.values.items()
      if "cache" not in name
    ),
    "source": _contents(_files(pathlib.Path(qdrl_haiku.__file__).parent)),
    "traced": _stamps(),
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


def of_users_modules(name: str) -> list[tuple[str, str]]:
  """Returns what a user's module and those that it may have imported are.

  Args:
    name: of the module, which has been imported.

  Returns:
    Names and contents of all imported modules that aren't installed packages,
    and of those in the package of the module itself.
  """
  package = name.partition(".")[0]
  places = tuple(
    os.path.realpath(sysconfig.get_path(x))
    for x in ("stdlib", "purelib", "platlib")
  )
  found = []
  for module, value in sorted(sys.modules.items()):
    path = getattr(value, "__file__", None)
    if path is None or not os.path.exists(path):
      continue
    is_installed = os.path.realpath(path).startswith(places)
    if not is_installed or module.partition(".")[0] == package:
      found.append((module, path))
  return _contents((module, pathlib.Path(path)) for module, path in found)


def _contents(
  files: Iterable[tuple[str, pathlib.Path]]
) -> list[tuple[str, str]]:
  """Returns a digest of each file's contents by name."""
  return [
    (name, hashlib.sha256(path.read_bytes()).hexdigest())
    for name, path in files
  ]


def _files(folder: pathlib.Path) -> list[tuple[str, pathlib.Path]]:
  """Returns all source files of a package, by their places in it."""
  return [
    (str(path.relative_to(folder)), path)
    for path in sorted(folder.rglob("*.py"))
  ]


@functools.cache
def _stamps() -> list[tuple[str, int, int]]:
  """Returns size and time of the files of `_TRACED`."""
  found = []
  for package in _TRACED:
    spec = importlib.util.find_spec(package)
    for place in (spec and spec.submodule_search_locations) or ():
      for name, path in _files(pathlib.Path(place)):
        stat = path.stat()
        found.append((f"{package}/{name}", stat.st_size, stat.st_mtime_ns))
  return found


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


def _add(hashed: Any, value: Any, seen: dict[int, tuple[int, Any]]) -> None:
  """Adds a value; one that was seen before by its number, as in a circle."""
  if isinstance(value, bool | int | float | complex | str | bytes | None):
    hashed.update(f"{type(value).__name__}:{value!r};".encode())
    return
  if id(value) in seen:
    hashed.update(f"seen:{seen[id(value)][0]};".encode())
    return
  # Kept, so that no other value gets its place in memory.
  seen[id(value)] = (len(seen), value)
  hashed.update(f"{type(value).__module__}.{type(value).__qualname__}(".encode())
  for part in _parts(value):
    if isinstance(part, bytes):
      hashed.update(hashlib.sha256(part).digest())
    else:
      _add(hashed, part, seen)
  hashed.update(b");")


def _parts(value: Any) -> Iterable[Any]:
  """Returns what a value is made of.

  Raises:
    Unknown: if that can't be told.
  """
  if isinstance(value, jax.Array):
    if jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key):
      return (str(value.dtype), np.asarray(jax.random.key_data(value)))
    value = np.asarray(value)
  if isinstance(value, np.ndarray | np.generic):
    if value.dtype == object:
      return (value.shape, value.tolist())
    return (str(value.dtype), value.shape, value.tobytes())
  if isinstance(value, list | tuple):
    return value
  if isinstance(value, set | frozenset):
    return sorted(map(repr, value))
  if isinstance(value, Mapping):
    return [x for pair in value.items() for x in pair]
  if isinstance(value, type | types.ModuleType | types.BuiltinFunctionType):
    # Code is counted elsewhere, by its files.
    return (getattr(value, "__module__", ""), value.__name__)
  if isinstance(value, functools.partial):
    return (value.func, value.args, value.keywords)
  if isinstance(value, types.MethodType):
    return (value.__func__, value.__self__)
  if isinstance(value, types.FunctionType):
    cells = [x.cell_contents for x in value.__closure__ or ()]
    return (
      value.__module__, value.__qualname__, value.__code__.co_code,
      value.__defaults__, value.__kwdefaults__, cells,
    )  # fmt: skip
  if hasattr(value, "__wrapped__"):  # A function of jax's.
    return (value.__wrapped__,)
  if hasattr(value, "__dict__"):
    return [x for pair in sorted(vars(value).items()) for x in pair]
  try:
    return (pickle.dumps(value),)
  except Exception as error:
    raise Unknown(f"{type(value).__qualname__} can't be told apart") from error
