"""Turns all work for CPUs on or off."""

import contextlib
import os
from collections.abc import Iterator

import jax

_VARIABLE = "QDRL_PLAIN"
_traced_for: list[str] = []
_is_plain = False


def switched_platform() -> str:
  """Returns the platform for which programs are traced, such as "cpu"."""
  return _traced_for[-1] if _traced_for else jax.default_backend()


@contextlib.contextmanager
def switching_platform(name: str) -> Iterator[None]:
  """Traces programs for another platform than jax's within a `with`."""
  _traced_for.append(name)
  try:
    yield
  finally:
    _traced_for.pop()


def switch_to_plain() -> None:
  """Turns all rewriting off until the process ends."""
  global _is_plain
  _is_plain = True


def is_switched_on() -> bool:
  """Returns whether programs are rewritten for CPUs.

  They are where jax computes on one, unless the environment says QDRL_PLAIN=1:
  then everything is compiled as written, to find out whether a fault lies in
  the rewriting. Numbers are the same but for rounding. (On GPUs that turns
  off what `compiler_options` has for them, so numbers may be wrong.)
  """
  return switched_platform() == "cpu" and not is_switched_to_plain()


def is_switched_to_plain() -> bool:
  """Returns whether all rewriting is off, on any platform."""
  return _is_plain or os.environ.get(_VARIABLE, "0") not in ("", "0")
