"""What is found by name, and what is traced at each start."""

import os
import random
import types

import jax
import pytest
from absl import logging
from jax.experimental.compilation_cache import compilation_cache

from qdrl_haiku import config as config_lib
from qdrl_haiku import environments, map_elites, training
from qdrl_haiku.environments import EnvironmentConfig
from qdrl_haiku.programs.cli import devices
from qdrl_haiku.programs.experiment import Config, cache_key
from qdrl_haiku.programs.storage import fingerprints

# Other tests have none.
_open = cache_key._open


@pytest.fixture
def cache(tmp_path, monkeypatch):
  """A cache for starts of a process that holds no code of a user's."""
  names = ("jax_compilation_cache_dir", "jax_enable_compilation_cache",
           "jax_persistent_cache_min_compile_time_secs")
  before = {name: jax.config.values[name] for name in names}
  folder = tmp_path / "cache"
  folder.mkdir(0o700)
  jax.config.update("jax_compilation_cache_dir", str(folder))
  monkeypatch.setenv("JAX_NUM_CPU_DEVICES", "1")
  monkeypatch.setattr(cache_key, "_open", _open)
  monkeypatch.setattr(fingerprints, "module_without_fingerprint", lambda: None)
  yield folder
  for name, value in before.items():
    jax.config.update(name, value)
  compilation_cache.reset_cache()


@pytest.mark.parametrize(("name", "value", "is_ours"), [
  ("env_name", "package.module:function", False),
  ("emitter", "ga:32,module:function:8", False),
  ("of_the_future", ["a", "module:function"], False),
  ("env_name", "halfcheetah_uni", True), ("emitter", "pbt:10,ga:32", True),
  ("num_envs", 8, True)])
def test_what_is_ours_alone_is_found_by_name(cache, name, value, is_ours):
  """Others may have read a file or a variable, or patched a function."""
  first, again, other = (
    cache_key._open({name: x}, "programs") for x in (value, value, "another"))
  if is_ours:
    assert first.key == again.key != other.key
  else:
    assert first is again is None


def _setup(tessellation, **config):
  qd = types.SimpleNamespace(tessellation=tessellation)
  return types.SimpleNamespace(
    on_host=False, map_elites=qd, config=training.TrainingConfig(**config))


def test_what_changes_programs_is_in_the_name(cache, monkeypatch):
  """As what a seed draws, what a benchmark shortens, and XLA's variable."""

  def key(setup, **settings):
    config = config_lib.replace_in_config_tree(Config(), settings)
    return cache_key.open_cache_by_key(config, setup).key

  grid, wider = (map_elites.Grid((4,), (0.0,), (x,)) for x in (1.0, 2.0))
  one = key(_setup(grid))
  assert one == key(_setup(grid)) == key(_setup(grid), seed=2)
  others = [
    key(_setup(grid, min_replay_size=8)), key(_setup(wider)),
    key(_setup(None)), key(_setup(grid), num_envs=2)]
  monkeypatch.setenv("XLA_FLAGS", "--xla_something=1")
  assert len({one, *others, key(_setup(grid))}) == 6


def test_beside_a_users_module_nothing_is_kept(cache, monkeypatch):
  with monkeypatch.context() as patch:
    patch.setattr(fingerprints, "module_without_fingerprint", lambda: "patches")
    assert cache_key._open({}, "programs") is None
  assert cache_key._open({}, "programs") is not None
  jax.config.update("jax_enable_compilation_cache", False)
  assert cache_key._open({}, "programs") is None


def test_a_cache_is_made_for_its_owner_alone(cache):
  folder = cache / "new"
  before = os.umask(0)
  devices.prepare_jax_devices(
    devices.ProcessConfig(compilation_cache_dir=str(folder)))
  os.umask(before)
  assert folder.stat().st_mode & 0o777 == 0o700
  assert jax.config.values["jax_compilation_cache_dir"] == str(folder)


@pytest.mark.parametrize("place", ["shared", "link/"])
def test_a_cache_of_others_is_not_used(cache, monkeypatch, place):
  lines = []
  monkeypatch.setattr(
    logging, "warning", lambda text, *args: lines.append(text % args))
  (cache / "shared").mkdir()
  (cache / "shared").chmod(0o777)
  (cache / "link").symlink_to(cache)
  given = str(cache / "x").replace("x", place)
  devices.prepare_jax_devices(
    devices.ProcessConfig(compilation_cache_dir=given))
  assert not jax.config.values["jax_enable_compilation_cache"]
  assert cache_key._open({}, "programs") is None
  (line,) = lines
  assert line.startswith(f"--compilation_cache_dir={given} isn't used, since ")


@pytest.mark.parametrize("shards", [False, True])
def test_where_a_repertoire_is_divided_nothing_is_read(cache, shards):
  config = devices.ProcessConfig(compilation_cache_dir=str(cache))
  devices.prepare_jax_devices(config, divides_repertoire=shards)
  # XLA forgets the order of devices on CPUs alone.
  forgets = shards and jax.default_backend() == "cpu"
  assert jax.config.values["jax_enable_compilation_cache"] != forgets


def test_jaxs_own_cache_notes_checksums(cache, monkeypatch):
  from jax._src import compilation_cache as of_jax

  # Which notes none by default.
  monkeypatch.setattr(of_jax, "zstandard", types.SimpleNamespace())
  devices.prepare_jax_devices(
    devices.ProcessConfig(compilation_cache_dir=str(cache)))
  written = bytearray(of_jax.compress_executable(
    random.Random(0).randbytes(1000)))
  written[500] ^= 1
  with pytest.raises(Exception, match="incorrect data check"):
    of_jax.decompress_executable(bytes(written))


@pytest.mark.parametrize("name", ["point_maze", f"{__name__}:Maze"])
def test_a_users_environment_is_always_checked(cache, name, monkeypatch):
  checked = []

  def create(name, sizes, **_):
    checked.append(sizes is None)
    return Maze()

  monkeypatch.setattr(environments.registry, "create", create)
  for _ in range(2):
    cache_key.make_env_by_cache_key(EnvironmentConfig(env_name=name))
  assert checked == [True, name != "point_maze"]


class Maze(environments.PointMaze):
  """A user's environment."""
