"""Tests of where compiled programs are kept."""

import jax
import pytest

from qdrl_haiku.programs.cli import devices
from qdrl_haiku.programs.storage import program_cache


@pytest.mark.parametrize("is_users", [False, True])
def test_a_start_bounds_the_cache_unless_it_is_of_other_programs_too(
  is_users, tmp_path, monkeypatch
):
  before = jax.config.values["jax_compilation_cache_dir"]
  jax.config.update(
    "jax_compilation_cache_dir", str(tmp_path) if is_users else before)
  monkeypatch.setenv("JAX_NUM_CPU_DEVICES", "1")
  monkeypatch.setattr(program_cache, "_MOST_BYTES", 100)
  tmp_path.chmod(0o700)
  for name in ("old-cache", "new-cache"):
    (tmp_path / name).write_bytes(bytes(60))
  try:
    devices.prepare_jax_devices(
      devices.ProcessConfig(compilation_cache_dir=str(tmp_path)))
  finally:
    jax.config.update("jax_compilation_cache_dir", before)
  assert len(list(tmp_path.iterdir())) == 1 + is_users
