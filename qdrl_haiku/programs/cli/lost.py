"""Joins the processes of a run; one that loses another ends with one line.

jax's coordination service notices by heartbeats that a process has died, hangs
or can't be reached. It ends the others from a thread of C++: it aborts them
with a stack, or calls a function. jaxlib (0.10.1, 0.12.0) can't hand a function
of Python's its argument, an `absl::Status`, and throws a `std::bad_cast` that
nothing catches. So such a function ends the process, too.
"""

import ctypes
import functools
import os
import sys
from typing import Any, NoReturn

import jax
from jax._src import distributed
from jax._src.lib import _jax

# After so long processes notice that another one is gone.
_HEARTBEAT_SECONDS = 30
_handler = ctypes.CFUNCTYPE(None)
_kept: list[object] = []  # What C++ calls.
_advice = ["start all of them again"]


def advise_lost(advice: str) -> None:
  """Sets the advice that a process prints when it has lost another one."""
  _advice[:] = [advice]


def leave_lost(reason: object = "nothing is heard of it") -> NoReturn:
  """Ends this process, since another one can't be reached."""
  reason = str(reason).partition("\n")[0]
  print(
    f"error: another process is gone or out of reach ({reason}); {_advice[0]}",
    file=sys.stderr, flush=True)
  # The usual way out would wait for the others.
  os._exit(1)


def join_processes(**given: Any) -> None:
  """Makes one run of several processes.

  Args:
    **given: arguments of `jax.distributed.initialize`.

  Raises:
    ValueError: if they don't find each other.
  """
  _leave_at_bad_casts()
  name = "get_distributed_runtime_client"
  # jax itself gives the client no such function.
  make = functools.partial(
    getattr(_jax, name), missed_heartbeat_callback=leave_lost)
  setattr(_jax, name, make)
  try:
    jax.distributed.initialize(
      **given, heartbeat_timeout_seconds=_HEARTBEAT_SECONDS)
  except RuntimeError as error:
    distributed.global_state.client = None  # Which is of no more use.
    reason = str(error).splitlines()[0].replace("std::bad_cast", "no answer")
    raise ValueError(
      f"the processes can't reach each other ({reason}); see that all of them "
      "run, and that the port is free.") from error


def _leave_at_bad_casts() -> None:
  """Leaves where no C++ catches a `std::bad_cast`; else nothing changes."""
  try:
    library = ctypes.CDLL("libstdc++.so.6")
  except OSError:  # As on a Mac, where processes are aborted.
    return
  exception = library.__cxa_current_exception_type
  exception.restype = ctypes.POINTER(ctypes.c_char_p)  # Its second is a name.
  set_terminate = library._ZSt13set_terminatePFvvE
  set_terminate.restype = _handler

  @_handler
  def end() -> None:
    thrown = exception()
    if thrown and thrown[1] == b"St8bad_cast":
      leave_lost()
    before()

  before = set_terminate(end)
  _kept.append(end)
