"""Chooses XLA's compiler options, for programs that run often or seldom."""

import functools
from typing import Any, NamedTuple

import jax

from qdrl_haiku.cpu import switch, xla


class CompilerOptions(NamedTuple):
  """Options by how much time a program takes of a run.

  Attributes:
    always: of what trains: to be fast.
    often: of what evaluates and decides: to be fast, and soon there.
    once: of what runs once, or hardly ever: to be there soonest.
  """

  always: dict[str, Any]
  often: dict[str, Any]
  once: dict[str, Any]


def of_mesh(mesh: jax.sharding.Mesh) -> CompilerOptions:
  """Returns the options for programs on a mesh."""
  if switch.is_plain():
    return CompilerOptions({}, {}, {})
  return _of_platform(mesh.devices.flat[0].platform)


@functools.cache
def _of_platform(platform: str) -> CompilerOptions:
  """Returns what `of_mesh` does.

  On a CPU LLVM's costlier passes take a quarter of the time that compiling
  takes, and gain 2 % in speed at most; the newer way of fusing operations takes
  another third, and makes updates 20 % faster, but nothing else. Without any of
  LLVM's passes what resets environments is compiled three times as fast, and
  runs a fifth as fast, once.
  """
  if platform != "cpu":
    return CompilerOptions({}, {}, {})
  level = "xla_backend_optimization_level"
  always: dict[str, Any] = {level: 1}
  often = always | {"xla_cpu_use_fusion_emitters": False}
  once = often | {level: 0}
  return CompilerOptions(*map(xla.known_options, (always, often, once)))
