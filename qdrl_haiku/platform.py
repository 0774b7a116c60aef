"""Tells the platform what a program is, and lets it decide what to make of it.

A program says that something is an update of one member, a decision, a step of
physics. On CPUs `cpu` rewrites that so that XLA is fast; elsewhere, and with
QDRL_PLAIN=1, it's compiled as written. Numbers are the same but for rounding.
No other part of the package imports `cpu`.
"""

from collections.abc import Callable

import jax

from qdrl_haiku.cpu.batching import rewrite_for_batching as physics
from qdrl_haiku.cpu.compiler_options import compiler_options
from qdrl_haiku.cpu.compiling import compile_program
from qdrl_haiku.cpu.cores import usable_cores
from qdrl_haiku.cpu.fusion import computed_once
from qdrl_haiku.cpu.fusion import fuse_gradient_by_outputs as weights
from qdrl_haiku.cpu.fusion import without_gradient_fusion as outputs
from qdrl_haiku.cpu.noise import normal_noise
from qdrl_haiku.cpu.one_by_one import one_by_one_alone as decision
from qdrl_haiku.cpu.one_by_one import one_by_one_on_cpu as member
from qdrl_haiku.cpu.switch import (
  is_switched_to_plain,
  switched_platform,
  switching_platform,
)
from qdrl_haiku.cpu.xla import known_xla_flags, unknown_to_xla
from qdrl_haiku.types import Array, Tree

__all__ = [
  # What a program is.
  "computed_once", "decision", "member", "normal_noise", "outputs", "physics",
  "weights", "where_needed",
  # How it's compiled, and for what.
  "branches_cheaply", "compile_program", "compiled", "compiler_options",
  "is_switched_to_plain", "known_xla_flags", "switching_platform",
  "unknown_to_xla", "usable_cores"]


def branches_cheaply() -> bool:
  """Returns whether loops and conditionals are cheap, as on CPUs.

  For each turn of a loop an accelerator starts kernels anew, and at each
  conditional it waits for the host.
  """
  return switched_platform() == "cpu"


def compiled(
  function: Callable[..., Tree], *args: Tree, often: bool = False
) -> jax.stages.Compiled:
  """Compiles a `function` for `args`, to be called once, or more `often`."""
  options = compiler_options().often if often else compiler_options().once
  jitted = jax.jit(function, compiler_options=options)
  return compile_program(lambda: jitted.lower(*args))


def where_needed(
  is_needed: Array, function: Callable[..., Tree],
  otherwise: Callable[..., Tree], *args: Tree,
) -> Tree:
  """Calls a function only where its result is needed, if branches are cheap.

  Args:
    is_needed: bool [].
    function: called with the arguments.
    otherwise: called in its place, if that saves anything.
    *args: trees of arrays.
  """
  if branches_cheaply():
    return jax.lax.cond(is_needed, function, otherwise, *args)
  return function(*args)
