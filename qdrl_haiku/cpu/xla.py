"""Asks the installed XLA which flags, options and marks it knows.

Versions of XLA drop what earlier ones had. A flag that it doesn't know ends the
process before Python can say a word, so whatever this package wants of XLA is
asked for here first; what isn't known is left out, and `left_out` says so.
"""

import functools
import mmap
import os
import pathlib
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import jax
import jaxlib

_left_out: set[str] = set()
# Parses XLA_FLAGS, and starts nothing else.
_PARSE = "from jaxlib import _jax; _jax.CompileOptions()"


def left_out() -> list[str]:
  """Returns the names of what was asked for and isn't known, in order."""
  return sorted(_left_out)


def known_options(options: Mapping[str, Any]) -> dict[str, Any]:
  """Keeps those compiler options that there are."""
  return {
    name: value
    for name, value in options.items()
    if _is_known(name, _knows_option, value)
  }


def known_flags(flags: Mapping[str, Any]) -> list[str]:
  """Keeps those flags that there are.

  Another process is asked, which may die of them.
  """
  return [
    f"--{name}={value}"
    for name, value in flags.items()
    if _is_known(name, _knows_flag, value)
  ]


def knows_mark(name: str) -> bool:
  """Returns whether XLA looks for an attribute of operations.

  It ignores those that it doesn't know, and nothing can be asked which it
  does; but the name of one that it looks for is in its code.
  """
  return _is_known(name, _is_in_code)


def _is_known(name: str, knows: Any, *args: Any) -> bool:
  is_known = knows(name, *args)
  if not is_known:
    _left_out.add(name)
  return is_known


@functools.cache
def _knows_option(name: str, value: Any) -> bool:
  try:
    jax.jit(lambda: 0, compiler_options={name: value})()
  except jax.errors.JaxRuntimeError:
    return False
  return True


@functools.cache
def _knows_flag(name: str, value: Any) -> bool:
  done = subprocess.run(
    [sys.executable, "-c", _PARSE],
    env=os.environ | {"XLA_FLAGS": f"--{name}={value}"},
    capture_output=True,
    check=False,
  )
  return done.returncode == 0


@functools.cache
def _is_in_code(name: str) -> bool:
  return any(
    _contains(path, name.encode())
    for path in pathlib.Path(jaxlib.__file__).parent.glob("libjax_common*")
  )


def _contains(path: pathlib.Path, name: bytes) -> bool:
  with (
    path.open("rb") as file,
    mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as code,
  ):
    return code.find(name) >= 0
