"""What all tests share: how their own process compiles, and where it's kept."""

import gc

import jax
import pytest

# Tracing makes many objects and little garbage; looking for it often takes 7 %
# of the time.
gc.set_threshold(100_000)


@pytest.fixture(scope="session", autouse=True)
def _quick_compilation(tmp_path_factory, worker_id):
  """Compiles quickly, and each program once for all workers.

  What tests run is small, so compiling it well takes longer than running it.
  Launchers that have a process of their own compile as they do for users, but
  keep their programs out of the user's cache too.
  """
  folder = tmp_path_factory.getbasetemp()
  if worker_id != "master":
    folder = folder.parent  # That of all workers of pytest-xdist.
  cache = str(folder / "compilation_cache")
  with pytest.MonkeyPatch.context() as patch:
    patch.setenv("JAX_COMPILATION_CACHE_DIR", cache)
    jax.config.update("jax_compilation_cache_dir", cache)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
    jax.config.update("jax_disable_most_optimizations", True)
    yield
