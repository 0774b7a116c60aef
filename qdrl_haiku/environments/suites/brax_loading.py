"""Imports brax quietly, and repairs what newer versions of jax break in it."""

import contextlib
import importlib
import importlib.machinery
import io
import sys
import types
import warnings
from collections.abc import Callable, Iterator
from importlib.machinery import ModuleSpec
from typing import Any

import jax
import jax.numpy as jnp

# What brax 0.14 says whenever it is used; none of it concerns our users.
_BRAX_WARNINGS = (
  "JAXopt is no longer maintained",
  "Brax System, piplines and environments are not actively",
  "Accessing `.*` directly from `Data` is deprecated")


def load_brax_class(name: str) -> Callable[..., Any]:
  """Returns the class of one of brax's environments."""
  import_brax()
  import brax.envs

  return brax.envs._envs[name]


def import_brax() -> None:
  """Imports brax, and repairs it."""
  # Imported late: brax takes seconds, which other environments don't need.
  redirect_brax_mujoco_warnings()
  with quiet_brax_loading():
    import brax.envs
    import brax.fluid
  # brax 0.14 calls `clip(a_min=)`, which jax 0.10 has renamed; without this
  # its swimmer, alone in a fluid, can't be stepped.
  brax.fluid.jp = types.SimpleNamespace(**(vars(jnp) | {"clip": _clip}))
  # MJX puts models on the first device of all processes, which those of the
  # others can't read.
  mjx_io: Any = importlib.import_module("mujoco.mjx._src.io")
  mjx_io.jax = types.SimpleNamespace(**(vars(jax) | {
    "devices": lambda backend=None: jax.local_devices(backend=backend)}))


def _find_warp(name: str, *where: Any) -> ModuleSpec | None:
  """Finds what prints that there's no warp, which nothing here needs."""
  if name != "mujoco.mjx.warp":
    return None
  spec: Any = importlib.machinery.PathFinder.find_spec(name, *where)
  run = spec.loader.exec_module

  def run_quietly(module: types.ModuleType) -> None:
    with contextlib.redirect_stdout(io.StringIO()):
      run(module)

  spec.loader.exec_module = run_quietly
  return spec


@contextlib.contextmanager
def quiet_brax_loading() -> Iterator[None]:
  """Hides what brax says whenever it is imported or used."""
  finder: Any = types.SimpleNamespace(find_spec=_find_warp)
  with warnings.catch_warnings():
    for message in _BRAX_WARNINGS:
      warnings.filterwarnings("ignore", message=message)
    sys.meta_path.insert(0, finder)
    try:
      yield
    finally:
      sys.meta_path.remove(finder)


def redirect_brax_mujoco_warnings() -> None:
  """Turns MuJoCo's warnings into Python's, for the rest of the process.

  By default MuJoCo appends them to a file in the current directory, when it
  reads a model and when it steps one. An existing handler stays. The warning
  about `settotalmass` in the models of brax and of Gymnasium is hidden.
  """
  import mujoco

  if mujoco.get_mju_user_warning() is None:
    mujoco.set_mju_user_warning(_warn)


def _warn(message: str) -> None:
  """Gives a warning of MuJoCo's as one of Python's."""
  if "settotalmass" not in message:
    warnings.warn(message, stacklevel=2)


def _clip(x: jax.Array, **limits: jax.Array) -> jax.Array:
  """Clips as `jnp.clip` does, by the older names of its limits too."""
  return jnp.clip(x, **{k.removeprefix("a_"): v for k, v in limits.items()})
