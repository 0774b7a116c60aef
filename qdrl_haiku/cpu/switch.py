"""Turns all work for CPUs on or off."""

import os

import jax

_VARIABLE = "QDRL_PLAIN"


def is_on() -> bool:
  """Returns whether programs are rewritten for CPUs.

  They are where jax computes on one, unless the environment says QDRL_PLAIN=1:
  then everything is compiled as it is written, to find out whether a fault lies
  in the rewriting, and to read what jax makes of the algorithms. Numbers are
  the same but for rounding.
  """
  return jax.default_backend() == "cpu" and not is_plain()


def is_plain() -> bool:
  """Returns whether QDRL_PLAIN=1 turns it off, on any platform."""
  return os.environ.get(_VARIABLE, "0") not in ("", "0")
