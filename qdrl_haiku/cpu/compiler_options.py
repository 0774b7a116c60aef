"""Chooses XLA's compiler options, for programs that run often or seldom."""

from typing import NamedTuple

import jax

from qdrl_haiku.cpu import switch, xla
from qdrl_haiku.cpu.xla import Options


class CompilerOptions(NamedTuple):
  """Holds compiler options, by how often a program runs."""

  always: Options  # For training: the fastest program.
  # For evaluation and decisions: a fast program, compiled sooner.
  often: Options
  # For what runs once or seldom: the program that is compiled soonest.
  once: Options


def compiler_options(platform: str | None = None) -> CompilerOptions:
  """Returns the options for programs on a platform.

  On GPUs XLA chooses each fusion's kernel by trying several, and some are wrong
  for small arrays: with jax 0.11.2 CrossQ's gradients were NaN (jax issue 39486
  is alike). So it tries kernels for matrix products only.

  On CPUs LLVM's costlier passes take a quarter of the compile time, and gain
  2 % in speed at most. XLA's fusion emitters take another third, and make
  updates 20 % faster, but nothing else. Without any of LLVM's passes the reset
  of environments compiles three times as fast, and runs only once.
  """
  platform = platform or jax.default_backend()
  if switch.is_switched_to_plain() or platform not in ("cpu", "gpu"):
    return CompilerOptions({}, {}, {})
  if platform == "gpu":
    tries_kernels = "xla_gpu_experimental_enable_fusion_autotuner"
    known = xla.known_xla_options({tries_kernels: False})
    return CompilerOptions(known, known, known)
  level = "xla_backend_optimization_level"
  always: Options = {level: 1}
  often = always | {"xla_cpu_use_fusion_emitters": False}
  once = often | {level: 0}
  return CompilerOptions(*map(xla.known_xla_options, (always, often, once)))
