"""What is found by name, and what is traced at each start."""

import os
import types

import jax
import pytest
from absl import logging
from jax.experimental.compilation_cache import compilation_cache

from qdrl_haiku import config as config_lib
from qdrl_haiku import environments, map_elites, training
from qdrl_haiku.cli import devices
from qdrl_haiku.environments import EnvironmentConfig
from qdrl_haiku.experiment import Config, cache_key
from qdrl_haiku.storage import fingerprints

# Other tests have none.
_open = cache_key._open


@pytest.fixture
def cache(tmp_path, monkeypatch):
  """A cache for starts of a process that holds no code of a user's."""
  names = ("jax_compilation_cache_dir", "jax_enable_compilation_cache",
           "jax_persistent_cache_min_compile_time_secs")  # fmt: skip
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


@pytest.mark.parametrize(("name", "value"), [
  ("env_name", "package.module:function"),
  ("emitter", "ga:32,module:function:8"),
  ("of_the_future", ["a", "module:function"]),
])
def test_with_a_part_of_a_users_nothing_is_found_by_name(cache, name, value):
  """It may have read a file, a variable, or a function that was replaced."""
  assert cache_key._open({name: value}, "programs") is None


@pytest.mark.parametrize(("name", "value"), [
  ("env_name", "halfcheetah_uni"),
  ("emitter", "pbt:10,ga:32"),
  ("num_envs", 8),
])
def test_what_is_ours_alone_is_found_by_name(cache, name, value):
  keys = [
    cache_key._open({name: x}, "programs").key
    for x in (value, value, "another")
  ]
  assert keys[0] == keys[1] != keys[2]


def _setup(tessellation, **config):
  qd = types.SimpleNamespace(tessellation=tessellation)
  return types.SimpleNamespace(
    on_host=False,
    map_elites=qd,
    config=training.TrainingConfig(**config),
  )


@pytest.mark.parametrize("other", [
  _setup(map_elites.Grid((4,), (0.0,), (1.0,)), min_replay_size=8),
  _setup(map_elites.Grid((4,), (0.0,), (2.0,))),
  _setup(None),
])
def test_what_settings_leave_open_is_in_the_name(cache, other):
  """As what a seed draws, and what a benchmark shortens."""
  grid = map_elites.Grid((4,), (0.0,), (1.0,))
  one, same, another = (
    cache_key.open_cache_by_key(Config(), x).key
    for x in (_setup(grid), _setup(grid), other)
  )
  assert one == same != another


@pytest.mark.parametrize("setting", ["num_envs", "seed"])
def test_other_settings_are_another_name_if_they_change_programs(
  cache, setting
):
  keys = [
    cache_key.open_cache_by_key(
      config_lib.replace_in_config_tree(Config(), {setting: x}), _setup(None)
    ).key
    for x in (1, 2)
  ]
  assert (keys[0] == keys[1]) == (setting == "seed")


def test_another_value_of_a_variable_is_another_name(cache, monkeypatch):
  keys = set()
  for value in (1, 2):
    monkeypatch.setenv("XLA_FLAGS", f"--xla_something={value}")
    keys.add(cache_key._open({}, "programs").key)
  assert len(keys) == 2


def test_beside_a_users_module_or_without_a_cache_nothing_is_kept(
  cache, monkeypatch
):
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
    devices.ProcessConfig(compilation_cache_dir=str(folder))
  )
  os.umask(before)
  assert folder.stat().st_mode & 0o777 == 0o700
  assert jax.config.values["jax_compilation_cache_dir"] == str(folder)


@pytest.mark.parametrize("place", ["shared", "link/"])
def test_a_cache_that_others_may_have_written_is_not_used(
  cache, monkeypatch, place
):
  lines = []
  monkeypatch.setattr(
    logging, "warning", lambda text, *args: lines.append(text % args)
  )
  (cache / "shared").mkdir()
  (cache / "shared").chmod(0o777)
  (cache / "link").symlink_to(cache)
  given = str(cache / "x").replace("x", place)
  devices.prepare_jax_devices(
    devices.ProcessConfig(compilation_cache_dir=given)
  )
  assert not jax.config.values["jax_enable_compilation_cache"]
  assert cache_key._open({}, "programs") is None
  (line,) = lines
  assert line.startswith(f"--compilation_cache_dir={given} isn't used, since ")


@pytest.mark.parametrize("shards", [False, True])
def test_where_a_repertoire_is_divided_nothing_is_read(cache, shards):
  config = devices.ProcessConfig(compilation_cache_dir=str(cache))
  devices.prepare_jax_devices(config, divides_repertoire=shards)
  assert jax.config.values["jax_enable_compilation_cache"] != shards


def test_jaxs_own_cache_notes_checksums_whatever_is_installed(
  cache, monkeypatch
):
  from jax._src import compilation_cache as of_jax

  # Which notes none by default.
  monkeypatch.setattr(of_jax, "zstandard", types.SimpleNamespace())
  devices.prepare_jax_devices(
    devices.ProcessConfig(compilation_cache_dir=str(cache))
  )
  written = bytearray(of_jax.compress_executable(os.urandom(1000)))
  written[500] ^= 1
  with pytest.raises(Exception, match="incorrect data check"):
    of_jax.decompress_executable(bytes(written))


@pytest.mark.parametrize("name", ["point_maze", f"{__name__}:Maze"])
def test_an_environment_of_a_users_alone_is_checked_at_each_start(
  cache, name, monkeypatch
):
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
