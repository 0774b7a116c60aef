"""Counts compilations, to find what is compiled again."""

import jax

_EVENT = "/jax/core/compile/backend_compile_duration"
_compiled = []


def _listen(event, duration, **_):
  if event == _EVENT:
    _compiled.append(duration)


jax.monitoring.register_event_duration_secs_listener(_listen)


def of(function, *args):
  """Counts the programs that a call compiles, or reads from the disk."""
  before = len(_compiled)
  jax.block_until_ready(function(*args))
  return len(_compiled) - before
