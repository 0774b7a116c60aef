"""Asks the installed XLA which flags and options it knows.

New versions of XLA drop flags that earlier ones had, and an unknown flag ends
the process before Python can report it. So each flag and option is tried here
first; unknown ones are left out, and `unknown_to_xla` names them.
"""

import functools
import os
import subprocess
import sys
from collections.abc import Mapping

import jax
import jaxlib

Options = dict[str, bool | int | str]
"""Values of compiler options by name."""

_left_out: set[str] = set()
# Parses XLA_FLAGS, and starts nothing else.
_PARSE = "from jaxlib import _jax; _jax.CompileOptions()"


def unknown_to_xla() -> list[str]:
  """Returns the names of flags and options that were left out, sorted."""
  return sorted(_left_out)


def calls_library_for_sums() -> bool:
  """Returns whether XLA for CPUs may have a library (YNNPACK) compute a sum."""
  return jaxlib.version.__version_info__ >= (0, 11)


def known_xla_options(options: Options) -> Options:
  """Returns the compiler options that XLA knows."""
  known = {x: value for x, value in options.items() if _knows_option(x, value)}
  _left_out.update(options.keys() - known.keys())
  return known


def known_xla_flags(flags: Mapping[str, object]) -> list[str]:
  """Returns the flags that XLA knows, each tried in another process."""
  known = {x: value for x, value in flags.items() if _knows_flag(x, value)}
  _left_out.update(flags.keys() - known.keys())
  return [f"--{name}={value}" for name, value in known.items()]


@functools.cache
def _knows_option(name: str, value: bool | int | str) -> bool:
  """Compiles with an option."""
  try:
    jax.jit(lambda: 0, compiler_options={name: value})()
  except jax.errors.JaxRuntimeError:
    return False
  return True


@functools.cache
def _knows_flag(name: str, value: object) -> bool:
  """Starts a process with a flag, which may die of it."""
  done = subprocess.run(
    [sys.executable, "-c", _PARSE],
    env=os.environ | {"XLA_FLAGS": f"--{name}={value}"}, capture_output=True,
    check=False)
  return done.returncode == 0
