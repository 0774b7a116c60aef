"""What all tests share: where launchers keep what they compile."""

import jax
import pytest


@pytest.fixture(scope="session", autouse=True)
def _compilation_cache(tmp_path_factory):
  """Keeps compiled programs out of the user's cache, and of this process."""
  with pytest.MonkeyPatch.context() as patch:
    cache = tmp_path_factory.mktemp("compilation_cache")
    patch.setenv("JAX_COMPILATION_CACHE_DIR", str(cache))
    jax.config.update("jax_compilation_cache_dir", str(cache))
    jax.config.update("jax_enable_compilation_cache", False)
    yield
