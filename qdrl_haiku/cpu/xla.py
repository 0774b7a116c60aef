"""Asks the installed XLA which flags, options and marks it knows.

Versions of XLA drop what earlier ones had, and a flag that it doesn't know ends
the process before Python can say a word. So everything is asked for here first;
what isn't known is left out, and `unknown_to_xla` names it.
"""

import functools
import mmap
import os
import pathlib
import subprocess
import sys
from collections.abc import Callable, Mapping

import jax
import jaxlib

Options = dict[str, bool | int | str]
"""Values of compiler options by name."""

_left_out: set[str] = set()
# Parses XLA_FLAGS, and starts nothing else.
_PARSE = "from jaxlib import _jax; _jax.CompileOptions()"


def unknown_to_xla() -> list[str]:
  """Returns the names of what was asked for and isn't known, in order."""
  return sorted(_left_out)


def known_xla_options(options: Options) -> Options:
  """Returns those compiler options that there are."""
  return {
    name: value
    for name, value in options.items()
    if _is_known(name, _knows_option, value)
  }


def known_xla_flags(flags: Mapping[str, object]) -> list[str]:
  """Returns those flags that there are, as another process finds out."""
  return [
    f"--{name}={value}"
    for name, value in flags.items()
    if _is_known(name, _knows_flag, value)
  ]


def xla_knows_mark(name: str) -> bool:
  """Returns whether XLA looks for an attribute of operations.

  It ignores unknown ones without a word; but the name of each that it looks
  for is in its code.
  """
  return _is_known(name, _is_in_code)


def _is_known(name: str, knows: Callable[..., bool], *args: object) -> bool:
  """Returns whether something is known, and notes it if it isn't."""
  is_known = knows(name, *args)
  if not is_known:
    _left_out.add(name)
  return is_known


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
    env=os.environ | {"XLA_FLAGS": f"--{name}={value}"},
    capture_output=True,
    check=False,
  )
  return done.returncode == 0


@functools.cache
def _is_in_code(name: str) -> bool:
  """Searches XLA's library."""
  for path in pathlib.Path(jaxlib.__file__).parent.glob("libjax_common*"):
    with (
      path.open("rb") as file,
      mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as code,
    ):
      if code.find(name.encode()) >= 0:
        return True
  return False
