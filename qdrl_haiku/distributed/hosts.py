"""Lets several processes that train one population agree on what they do.

All of them run the same code at the same time, on files that all of them see.
"""

import jax
import numpy as np
from jax.experimental import multihost_utils


def is_first_host() -> bool:
  """Returns whether this is the process that writes for all."""
  return jax.process_index() == 0


def wait_for_all_hosts(name: str) -> None:
  """Waits until all processes are here."""
  if jax.process_count() > 1:
    multihost_utils.sync_global_devices(name)


def any_host(flag: bool) -> bool:
  """Returns whether a flag is set in any process.

  Every process has to call this and the functions below, or the others wait.
  """
  if jax.process_count() == 1:
    return flag
  return bool(np.any(multihost_utils.process_allgather(np.array(flag))))


def as_first_host(flag: bool) -> bool:
  """Returns the value that a flag has in the first process."""
  return any_host(flag and is_first_host())


def text_of_first_host(text: str) -> str:
  """Returns the text that the first process has."""
  if jax.process_count() == 1:
    return text
  data = np.frombuffer(text.encode(), np.uint8)
  size = multihost_utils.broadcast_one_to_all(np.int32(data.size))
  # To be broadcast, the data must have one size in all processes.
  data = multihost_utils.broadcast_one_to_all(np.resize(data, int(size)))
  return np.asarray(data, np.uint8).tobytes().decode()
