"""Configures how the tests' process compiles, and where programs are kept."""

import ctypes
import gc
import os
import pathlib
from typing import Any

import jax
import pytest
from xdist.scheduler import LoadScopeScheduling

from qdrl_haiku.cpu import xla

# Tracing makes many objects and little garbage; looking for it often takes 7 %
# of the time.
gc.set_threshold(100_000)
# So that two of them have room on a laptop with 8 GB.
_MOST_BYTES = 1_400_000_000


def pytest_addoption(parser: pytest.Parser) -> None:
  """Adds a flag that chooses a part of the tests."""
  parser.addoption(
    "--share", default="0/1",
    help="i/n: of n shares of all tests the i-th, counted from 0")


# Last: of the tests that -m has chosen.
@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(
  config: pytest.Config, items: list[pytest.Item]
) -> None:
  """Leaves out what isn't of the share; each has some tests of every module."""
  share, number = map(int, config.getoption("--share").split("/"))
  kept = items[share::number]
  config.hook.pytest_deselected(items=[x for x in items if x not in kept])
  items[:] = kept
  gc.freeze()  # What was imported stays, and is looked through no more.


class _ByRoom(LoadScopeScheduling):
  """Gives a worker all tests of a room, which share what they have compiled."""

  def _split_scope(self, nodeid: str) -> str:
    return nodeid.partition("::")[0].rpartition("/")[0]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(
  config: pytest.Config, log: Any
) -> LoadScopeScheduling:
  """Divides tests among workers."""
  return _ByRoom(config, log)


def pytest_configure() -> None:
  """Compiles this process's programs quickly.

  What tests run is small, so compiling it well takes longer than running it.
  Launchers that have a process of their own compile as they do for users.
  """
  jax.config.update("jax_disable_most_optimizations", True)
  # Or the first of several processes takes most of an accelerator's memory.
  os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
  with pytest.MonkeyPatch.context() as patch:
    # MLIR's passes over each fusion are half of what is left; newer versions of
    # XLA have no other way. Modules that LLVM compiles side by side cost more.
    cheaper = xla.known_xla_flags({
      "xla_cpu_use_fusion_emitters": "false",
      "xla_cpu_parallel_codegen_split_count": "1",
      # On GPUs it chooses kernels by trying several, some of which are wrong
      # for arrays as small as tests have; see `cpu.compiler_options`.
      "xla_gpu_autotune_level": "0"})
    given = os.environ.get("XLA_FLAGS", "")
    patch.setenv("XLA_FLAGS", " ".join([given, *cheaper]))
    jax.block_until_ready(jax.jit(lambda: 0)())  # XLA reads its flags once.
  if jax.default_backend() != "cpu":
    # Accelerators multiply numbers rounded to 10 bits (TF32) by default.
    jax.config.update("jax_default_matmul_precision", "highest")


@pytest.fixture(scope="module", autouse=True)
def _bounded_memory():
  """Frees compiled programs where a process has many; the disk keeps them."""
  yield
  statm = pathlib.Path("/proc/self/statm")
  if not statm.exists():  # As on a Mac.
    return
  _, resident, shared, *_ = map(int, statm.read_text().split())
  if (resident - shared) * os.sysconf("SC_PAGE_SIZE") > _MOST_BYTES:
    jax.clear_caches()
    gc.collect()
    # Or glibc keeps most of it, and programs are freed after every module.
    trim = getattr(ctypes.CDLL(None), "malloc_trim", lambda _: None)
    trim(0)


@pytest.fixture(scope="session", autouse=True)
def _environment(tmp_path_factory, worker_id):
  """Compiles each program once for all workers, out of the user's cache."""
  folder = tmp_path_factory.getbasetemp()
  if worker_id != "master":
    folder = folder.parent  # That of all workers of pytest-xdist.
  # The gate keeps them from one tier to the next.
  cache = os.environ.get("QDRL_TESTS_CACHE") or str(
    folder / "compilation_cache")
  # A folder that others may write to isn't used.
  pathlib.Path(cache).mkdir(mode=0o700, parents=True, exist_ok=True)
  jax.config.update("jax_compilation_cache_dir", cache)
  jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
  with pytest.MonkeyPatch.context() as patch:
    patch.setenv("JAX_COMPILATION_CACHE_DIR", cache)
    # jax sets it where it's imported; launchers find what a user's have.
    patch.delenv("TF_CPP_MIN_LOG_LEVEL", raising=False)
    yield
