"""Compiles programs, as usual where XLA refuses what is made for CPUs."""

from collections.abc import Callable

import jax
from absl import logging

from qdrl_haiku.cpu import switch


def compile_program(
  lower: Callable[[], jax.stages.Lowered]
) -> jax.stages.Compiled:
  """Compiles a program, without rewriting if XLA refuses what is rewritten.

  No XLA promises to take what `fusion` marks. After a refusal all programs of
  the process are as with QDRL_PLAIN=1, and a warning says so.

  Args:
    lower: traces and lowers the program; called once more after a refusal.

  Raises:
    jax.errors.JaxRuntimeError: if XLA refuses the program as usual, too.
  """
  try:
    return lower().compile()
  except jax.errors.JaxRuntimeError as error:
    if not switch.is_switched_on():
      raise
    reason = str(error).strip().partition("\n")[0]
  logging.warning(
    "XLA refuses a program that would be fast on CPUs (%s), so programs are "
    "compiled as usual, and may take several times as long", reason)
  switch.switch_to_plain()
  jax.clear_caches()  # Of what was traced for CPUs.
  return lower().compile()
