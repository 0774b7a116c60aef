"""What is found by name, and what is traced at each start."""

import functools
import importlib
import os
import sys
import types

import brax
import jax
import jax.numpy as jnp
import pytest
from absl import logging
from jax.experimental.compilation_cache import compilation_cache

from qdrl_haiku import config as config_lib
from qdrl_haiku import environments, map_elites, training
from qdrl_haiku.cli import devices
from qdrl_haiku.environments import EnvironmentConfig
from qdrl_haiku.experiment import Config, cache_key
from qdrl_haiku.runs.programs import Program
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
  monkeypatch.setattr(fingerprints, "users_module", lambda: None)
  yield folder
  for name, value in before.items():
    jax.config.update(name, value)
  compilation_cache.reset_cache()


_ROBOT = """
import os
import pathlib

import brax.math
import jax.numpy as jnp
import numpy as np
import gears_of_mine

HERE = pathlib.Path(__file__).parent
SPEED = float((HERE / "speed").read_text())
TABLE = np.append(np.zeros(20_000), SPEED)
EDITED = {edited}


def replaced():
  return 0.0


class Line:
  speed = 0.0

  def __init__(self):
    self.own = float(os.environ["MY_SPEED"])

  def step(self, x):
    return x + {expression}
"""


def _start(folder, monkeypatch, speed, expression):
  """Makes a user's environment as a new process does; it may have changed."""
  (folder / "speed").write_text(str(speed))
  (folder / "gears_of_mine.py").write_text(f"RATIO = {speed}\n")
  (folder / "robots_of_mine.py").write_text(
    _ROBOT.format(edited=speed, expression=expression)
  )
  monkeypatch.setenv("MY_SPEED", str(speed))
  for name in ("gears_of_mine", "robots_of_mine"):
    sys.modules.pop(name, None)
  importlib.invalidate_caches()
  robots = importlib.import_module("robots_of_mine")
  robots.Line.speed = speed
  robots.replaced = lambda: speed
  monkeypatch.setattr(brax.math, "safe_norm", lambda x: speed)
  return robots.Line()


@pytest.mark.parametrize(
  "expression",
  [
    "SPEED",
    "jnp.asarray(TABLE)[jnp.int32(x) + 20_000]",
    "float((HERE / 'speed').read_text())",
    "float(os.environ['MY_SPEED'])",
    "self.own",
    "self.speed",
    "replaced()",
    "brax.math.safe_norm(x)",
    "EDITED",
    "gears_of_mine.RATIO",
  ],
)
def test_an_environment_that_computes_something_else_is_traced_anew(
  cache, tmp_path, monkeypatch, expression
):
  monkeypatch.syspath_prepend(tmp_path)
  monkeypatch.setattr(sys, "dont_write_bytecode", True)
  for speed in (1.0, 5.0):
    env = _start(tmp_path, monkeypatch, speed, expression)
    programs = cache_key._open({"env_name": "robots_of_mine:Line"}, "programs")
    program = Program(
      "step",
      functools.partial(jax.jit(env.step).lower, jnp.zeros(())),
      {},
      jax.devices()[:1],
      programs,
    )
    assert program(jnp.zeros(())) == speed


@pytest.mark.parametrize(
  ("name", "value"),
  [
    ("env_name", "package.module:function"),
    ("env_name", "gymnasium:Pendulum-v1"),
    ("emitter", "ga:32,module:function:8"),
    ("of_the_future", ["a", "module:function"]),
  ],
)  # fmt: skip
def test_with_a_part_of_a_users_nothing_is_found_by_name(cache, name, value):
  assert cache_key._open({name: value}, "programs").key is None


@pytest.mark.parametrize(
  ("name", "value"),
  [
    ("env_name", "halfcheetah_uni"),
    ("emitter", "pbt:10,ga:32"),
    ("search_space", ["discount:one_minus_log_uniform:0.9:0.99"]),
    ("hidden_layer_sizes", ["64", "64"]),
    ("num_envs", 8),
    ("qd_offset", None),
  ],
)
def test_what_is_ours_alone_is_found_by_name(cache, name, value):
  keys = [
    cache_key._open({name: x}, "programs").key
    for x in (value, value, "another")
  ]
  assert None not in keys
  assert keys[0] == keys[1] != keys[2]


def _setup(tessellation, **config):
  qd = types.SimpleNamespace(tessellation=tessellation)
  return types.SimpleNamespace(
    on_host=False,
    map_elites=qd,
    config=training.TrainingConfig(**config),
  )


@pytest.mark.parametrize(
  "other",
  [
    _setup(map_elites.Grid((4,), (0.0,), (1.0,)), min_replay_size=8),
    _setup(map_elites.Grid((4,), (0.0,), (2.0,))),
    _setup(map_elites.CVT(jnp.asarray([[0.2], [0.7]]), (0.0,), (1.0,))),
    _setup(map_elites.CVT(jnp.asarray([[0.2], [0.8]]), (0.0,), (1.0,))),
    _setup(None),
  ],
)
def test_what_settings_leave_open_is_in_the_name(cache, other):
  """As what a seed draws, and what a benchmark shortens."""
  grid = map_elites.Grid((4,), (0.0,), (1.0,))
  one, same, another = (
    cache_key.program_cache(Config(), x).key
    for x in (_setup(grid), _setup(grid), other)
  )
  assert one == same != another


@pytest.mark.parametrize("setting", ["num_envs", "seed"])
def test_other_settings_are_another_name_if_they_change_programs(
  cache, setting
):
  keys = [
    cache_key.program_cache(
      config_lib.replaced(Config(), {setting: x}), _setup(None)
    ).key
    for x in (1, 2)
  ]
  assert (keys[0] == keys[1]) == (setting == "seed")


def test_beside_a_users_module_nothing_is_found_by_name(cache, monkeypatch):
  monkeypatch.setattr(fingerprints, "users_module", lambda: "patches")
  assert cache_key._open({"env_name": "ant"}, "programs").key is None


def test_another_value_of_a_variable_is_another_name(cache, monkeypatch):
  monkeypatch.setenv("XLA_FLAGS", "--xla_something=1")
  one = cache_key._open({}, "programs").key
  monkeypatch.setenv("XLA_FLAGS", "--xla_something=2")
  assert cache_key._open({}, "programs").key != one


def test_without_a_cache_nothing_is_kept(cache):
  jax.config.update("jax_enable_compilation_cache", False)
  assert cache_key._open({}, "programs") is None


def test_a_cache_is_made_for_its_owner_alone(cache):
  folder = cache / "new"
  before = os.umask(0)
  devices.prepare_jax(devices.ProcessConfig(compilation_cache_dir=str(folder)))
  os.umask(before)
  assert folder.stat().st_mode & 0o777 == 0o700
  assert jax.config.values["jax_compilation_cache_dir"] == str(folder)


@pytest.mark.parametrize("place", ["shared", "link", "link/"])
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
  devices.prepare_jax(devices.ProcessConfig(compilation_cache_dir=given))
  assert not jax.config.values["jax_enable_compilation_cache"]
  assert cache_key._open({}, "programs") is None
  (line,) = lines
  assert line.startswith(f"--compilation_cache_dir={given} isn't used, since ")


@pytest.mark.parametrize("shards", [False, True])
def test_where_a_repertoire_is_divided_nothing_is_read(cache, shards):
  config = devices.ProcessConfig(compilation_cache_dir=str(cache))
  devices.prepare_jax(config, divides_repertoire=shards)
  assert jax.config.values["jax_enable_compilation_cache"] != shards


def test_jaxs_own_cache_notes_checksums_whatever_is_installed(
  cache, monkeypatch
):
  from jax._src import compilation_cache as of_jax

  monkeypatch.setattr(of_jax, "zstandard", _WithoutChecksums)
  devices.prepare_jax(devices.ProcessConfig(compilation_cache_dir=str(cache)))
  written = bytearray(of_jax.compress_executable(os.urandom(1000)))
  written[500] ^= 1
  with pytest.raises(Exception, match="incorrect data check"):
    of_jax.decompress_executable(bytes(written))


class _WithoutChecksums:
  """Compresses as zstandard does, which notes none by default."""

  class ZstdCompressor:
    def compress(self, data):
      return data

  class ZstdDecompressor:
    def decompress(self, data):
      return data


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
    cache_key.make_env(EnvironmentConfig(env_name=name))
  assert checked == [True, name != "point_maze"]


class Maze(environments.PointMaze):
  """A user's environment."""
