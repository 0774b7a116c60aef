"""Whether what XLA needs on CPUs is done at all."""

import os

import jax

_VARIABLE = "QDRL_PLAIN"


def is_on() -> bool:
  """Returns whether programs are to be made as XLA likes them on CPUs.

  They are where jax computes on one, unless the environment says QDRL_PLAIN=1:
  then everything is traced and compiled as it is written, to find out whether a
  fault is ours, and to read what jax makes of the algorithms. Numbers are the
  same but for rounding.
  """
  return jax.default_backend() == "cpu" and not is_plain()


def is_plain() -> bool:
  """Returns whether QDRL_PLAIN=1 turns it off, whatever the platform."""
  return os.environ.get(_VARIABLE, "0") not in ("", "0")
