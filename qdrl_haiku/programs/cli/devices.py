"""Prepares jax: devices, processes, and the cache of programs."""

import contextlib
import dataclasses
import os
import pathlib
import re
from typing import Any

import jax
from absl import logging
from jax._src import compilation_cache

from qdrl_haiku import checks, files, platform
from qdrl_haiku.config import Settings, setting
from qdrl_haiku.programs.cli import lost

# How many processes belong together, as Slurm and Open MPI say.
_CLUSTER_SIZES = ("SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE")
_PROCESS = ("coordinator_address", "num_processes", "process_id")
# How long processes on CPUs wait for each other, by default seconds.
_WAITING = (
  "xla_cpu_collective_call_terminate_timeout_seconds",
  "xla_cpu_collective_timeout_seconds")
_A_DAY = 86_400
# How much a folder keeps, of what was used last; a start needs some 20 MB.
_MOST_BYTES = 500_000_000


@dataclasses.dataclass(frozen=True)
class ProcessConfig(Settings):
  """Says which process of several this is, and where it keeps programs."""

  title = "Processes"

  compilation_cache_dir: str | None = setting(
    None,
    "Directory in which compiled programs are kept for the next run, at most "
    "0.5 GB; by default in the user's cache directory, nowhere if empty. On "
    "CPUs several processes keep none.")
  coordinator_address: str | None = setting(
    None,
    "Host of the first of several processes and a free port there, such as "
    "10.0.0.1:1234. Not needed under Slurm, Open MPI and Kubernetes.")
  num_processes: int | None = setting(
    None, "How many processes there are.", low=1)
  process_id: int | None = setting(
    None, "Number of this process, counted from 0.", low=0)

  def __post_init__(self) -> None:
    super().__post_init__()
    address, size, number = self.given.values()
    missing = [f"--{name}" for name, x in self.given.items() if x is None]
    with checks.Refusals() as refusals:
      if 0 < len(missing) < len(self.given):
        refusals.refuse(
          f"{' and '.join(missing)} missing: several processes need "
          "--coordinator_address, --num_processes and --process_id.")
      if size is not None and number is not None and number >= size:
        refusals.refuse(
          f"--process_id={number} must be at least 0 and below "
          f"--num_processes={size}.")
      if address is not None and not re.fullmatch(r".+:\d+", address):
        refusals.refuse(
          f"--coordinator_address={address} has no port; give it like "
          "10.0.0.1:1234.")

  @property
  def given(self) -> dict[str, Any]:
    """The settings that say which process this is; None to ask the cluster."""
    return {name: getattr(self, name) for name in _PROCESS}


def prepare_jax_devices(
  config: ProcessConfig, *, divides_repertoire: bool = False
) -> None:
  """Makes a device of each usable core, and keeps programs for the next run.

  Physics runs faster on many devices than on many threads; JAX_NUM_CPU_DEVICES
  may set their number. Has to be called before jax looks for devices.
  """
  if "JAX_NUM_CPU_DEVICES" not in os.environ:
    jax.config.update("jax_num_cpu_devices", platform.usable_cores().number)
  # The variable is that of an indexed Job of Kubernetes.
  is_in_cluster = "JOB_COMPLETION_INDEX" in os.environ or any(
    os.environ.get(name, "1") != "1" for name in _CLUSTER_SIZES)
  if config.num_processes is not None or is_in_cluster:
    _allow_waiting()
    lost.join_processes(**config.given)
  # Read from a file, a program for CPUs has lost the order of its collectives.
  # Several processes, and devices at collectives that don't depend on each
  # other, have been seen to wait forever (jax 0.10.1). In one process, only a
  # sharded repertoire makes such collectives.
  forgets = jax.distributed.is_initialized() or divides_repertoire
  folder = None
  if not (forgets and jax.default_backend() == "cpu"):
    folder = _cache_folder(config.compilation_cache_dir)
  if folder is None:
    jax.config.update("jax_enable_compilation_cache", False)
    return
  if str(folder) != jax.config.values["jax_compilation_cache_dir"]:
    _forget_unused_programs(folder)
  jax.config.update("jax_compilation_cache_dir", str(folder))
  # Small programs count too: there are many of them.
  jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
  # Without these jax compresses with zlib, which alone detects damage.
  for name in ("zstandard", "zstd"):
    if hasattr(compilation_cache, name):
      setattr(compilation_cache, name, None)


def _cache_folder(given: str | None) -> pathlib.Path | None:
  """Makes the folder for compiled programs; None if they aren't kept."""
  cache = given
  if cache is None:
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    configured = getattr(jax.config, "jax_compilation_cache_dir", None)
    cache = configured or os.path.join(home, "qdrl_haiku")
  if not cache:
    return None
  folder = pathlib.Path(cache)
  try:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    reason = files.why_file_not_private(os.lstat(folder))
  except OSError as error:
    if given is None:
      return None  # There is no home; compiling each time will do.
    raise ValueError(
      f"--compilation_cache_dir={cache} can't be written ({error.strerror}); "
      "choose another, or leave it empty.") from error
  if reason is not None:
    logging.warning(
      "--compilation_cache_dir=%s isn't used, since %s and what is kept there "
      "is run; delete it, or choose a folder of your own.", cache, reason)
    return None
  return folder


def _forget_unused_programs(folder: pathlib.Path) -> None:
  """Deletes programs beyond half a gigabyte, those used longest ago."""
  # Another process may tidy at the same time.
  with contextlib.suppress(OSError):
    found = [(x.stat(), x) for x in folder.glob("*-cache")]  # jax's names.
    # jax doesn't note when it reads a file, but most file systems do.
    found.sort(key=lambda x: max(x[0].st_atime, x[0].st_mtime), reverse=True)
    size = 0
    for stat, path in found:
      size += stat.st_size
      if size > _MOST_BYTES:
        path.unlink()


def _allow_waiting() -> None:
  """Lets CPU processes wait for one that writes; heartbeats show dead ones."""
  given = os.environ.get("XLA_FLAGS", "")
  wanted = {name: _A_DAY for name in _WAITING if name not in given}
  known = platform.known_xla_flags(wanted)
  os.environ["XLA_FLAGS"] = " ".join([given, *known]).strip()
