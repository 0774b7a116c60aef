"""Tests of where compiled programs are kept."""

import os
import random
import time
import types

import jax
import pytest
from absl import logging
from jax._src import compilation_cache as of_jax
from jax.experimental.compilation_cache import compilation_cache

from qdrl_haiku.programs.cli import devices


@pytest.fixture
def cache(tmp_path, monkeypatch):
  """A user's folder for jax's programs."""
  names = ("jax_compilation_cache_dir", "jax_enable_compilation_cache",
           "jax_persistent_cache_min_compile_time_secs")
  before = {name: jax.config.values[name] for name in names}
  folder = tmp_path / "cache"
  folder.mkdir(0o700)
  jax.config.update("jax_compilation_cache_dir", str(folder))
  monkeypatch.setenv("JAX_NUM_CPU_DEVICES", "1")
  yield folder
  for name, value in before.items():
    jax.config.update(name, value)
  compilation_cache.reset_cache()


def _prepare(folder, **settings):
  devices.prepare_jax_devices(
    devices.ProcessConfig(compilation_cache_dir=str(folder)), **settings)


def test_a_cache_is_made_for_its_owner_alone(cache):
  before = os.umask(0)
  _prepare(cache / "new")
  os.umask(before)
  assert (cache / "new").stat().st_mode & 0o777 == 0o700
  assert jax.config.values["jax_compilation_cache_dir"] == str(cache / "new")


@pytest.mark.parametrize("place", ["shared", "link/", "theirs"])
def test_a_cache_of_others_is_not_used(cache, monkeypatch, place):
  lines = []
  monkeypatch.setattr(
    logging, "warning", lambda text, *args: lines.append(text % args))
  (cache / "shared").mkdir()
  (cache / "shared").chmod(0o777)
  (cache / "link").symlink_to(cache)
  if place == "theirs":
    someone_else = os.geteuid() + 1
    monkeypatch.setattr(os, "geteuid", lambda: someone_else)
  given = str(cache / "x").replace("x", place)
  _prepare(given)
  assert not jax.config.values["jax_enable_compilation_cache"]
  (line,) = lines
  assert line.startswith(f"--compilation_cache_dir={given} isn't used, since ")


@pytest.mark.parametrize("shards", [False, True])
def test_where_a_repertoire_is_divided_nothing_is_read(cache, shards):
  _prepare(cache, divides_repertoire=shards)
  # XLA forgets the order of devices on CPUs alone.
  forgets = shards and jax.default_backend() == "cpu"
  assert jax.config.values["jax_enable_compilation_cache"] != forgets


def test_a_cache_notes_checksums(cache, monkeypatch):
  # Which jax notes none of by default.
  monkeypatch.setattr(of_jax, "zstandard", types.SimpleNamespace())
  _prepare(cache)
  written = bytearray(of_jax.compress_executable(
    random.Random(0).randbytes(1000)))
  written[500] ^= 1
  with pytest.raises(Exception, match="incorrect data check"):
    of_jax.decompress_executable(bytes(written))


@pytest.mark.parametrize("is_users", [False, True])
def test_programs_used_least_lately_are_forgotten_in_a_folder_of_ours(
  is_users, cache, monkeypatch
):
  if not is_users:
    jax.config.update("jax_compilation_cache_dir", None)
  monkeypatch.setattr(devices, "_MOST_BYTES", 2500)
  names = {"notes", "a-cache", "b-cache", "c-cache"}
  for i, name in enumerate(sorted(names)):
    (cache / name).write_bytes(bytes(1000))
    # jax has read the first one since it wrote it.
    os.utime(cache / name, (time.time() if name == "a-cache" else i, i))
  _prepare(cache)
  gone = set() if is_users else {"b-cache"}
  assert {x.name for x in cache.iterdir()} == names - gone
