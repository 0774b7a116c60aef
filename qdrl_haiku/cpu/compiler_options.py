"""Chooses XLA's compiler options, for programs that run often or seldom."""

from typing import NamedTuple

import jax

from qdrl_haiku.cpu import switch, xla
from qdrl_haiku.cpu.xla import Options


class CompilerOptions(NamedTuple):
  """Options by how much time a program takes of a run.

  Attributes:
    always: of what trains: to be fast.
    often: of what evaluates and decides: to be fast, and soon there.
    once: of what runs once, or hardly ever: to be there soonest.
  """

  always: Options
  often: Options
  once: Options


def platform_compiler_options(platform: str | None = None) -> CompilerOptions:
  """Returns the options for programs on a platform: none but on CPUs.

  There LLVM's costlier passes take a quarter of the time that compiling takes,
  and gain 2 % in speed at most; the newer way of fusing operations takes
  another third, and makes updates 20 % faster, but nothing else. Without any of
  LLVM's passes what resets environments is compiled three times as fast, and
  runs a fifth as fast, once.
  """
  platform = platform or jax.default_backend()
  if switch.is_switched_to_plain() or platform != "cpu":
    return CompilerOptions({}, {}, {})
  level = "xla_backend_optimization_level"
  always: Options = {level: 1}
  often = always | {"xla_cpu_use_fusion_emitters": False}
  once = often | {level: 0}
  return CompilerOptions(*map(xla.known_xla_options, (always, often, once)))
