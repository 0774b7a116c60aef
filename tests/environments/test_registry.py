"""Tests of environments by name."""

import re
import sys

import jax
import jax.numpy as jnp
import pytest

from qdrl_haiku import environments
from qdrl_haiku.environments import registry
from qdrl_haiku.environments.suites import brax_loading

_TOY = '''
from qdrl_haiku import environments


class Wide(environments.PointMaze):
  def __init__(self, layout, backend):
    super().__init__(layout)
    self.backend = backend


def make(layout="open", backend="none"):
  return Wide(layout, backend)


def needs(layout):
  return Wide(layout, "none")
'''


@pytest.fixture
def toy(tmp_path, monkeypatch):
  """A module in a working directory that isn't on the path."""
  name = f"toy_{tmp_path.name}"
  (tmp_path / f"{name}.py").write_text(_TOY)
  (tmp_path / f"{name}_broken.py").write_text("import no_such_module_of_ours")
  monkeypatch.chdir(tmp_path)
  monkeypatch.setattr(sys, "path", list(sys.path))
  yield name
  sys.modules.pop(name, None)


@pytest.fixture
def no_brax(monkeypatch):
  """Makes every import of brax fail."""
  for name in [n for n in sys.modules if n.split(".")[0] == "brax"]:
    monkeypatch.delitem(sys.modules, name)
  monkeypatch.setitem(sys.modules, "brax", None)


@pytest.fixture
def braxs_registry(monkeypatch):
  """brax's own, to which a test may add."""
  brax_loading.load_brax_class("fast")
  import brax.envs

  monkeypatch.setattr(brax.envs, "_envs", dict(brax.envs._envs))
  return brax.envs


def test_the_names_are_those_of_brax_and_ours(braxs_registry):
  names = set(environments.registered_environments())
  assert names > {*braxs_registry._envs, "ant_omni", "ant_trap", "ant_uni"}
  for name, entry in (registry.BRAX | registry.OURS).items():
    assert entry.backend is None or entry.backend in entry.backends, name


def test_settings_reach_an_environment_of_brax():
  env = environments.create("inverted_pendulum")
  assert env.episode_length == 1000
  assert env.unwrapped.backend == "generalized"
  env = environments.create(
    "inverted_pendulum", backend="spring", episode_length=7, n_frames=3)
  assert env.episode_length == 7
  assert (env.unwrapped.backend, env.unwrapped._n_frames) == ("spring", 3)


def test_an_environment_that_exists_is_taken_as_it_is():
  maze = environments.PointMaze()
  env = environments.create(maze)
  assert env.unwrapped is maze
  assert env.episode_length == 1000
  with pytest.raises(ValueError, match="layout, backend has no effect"):
    environments.create(maze, layout="open", backend="spring")


class _Registered(environments.PointMaze):
  """An environment that a user registers, with a descriptor and a setting."""

  def __init__(self, layout="maze", wrong=False):
    super().__init__(layout)
    self._wrong = wrong

  def reset(self, key):
    state = super().reset(key)
    return state.replace(obs=state.obs * jnp.nan) if self._wrong else state


def test_a_name_registered_with_brax_is_known(braxs_registry):
  # One of brax's may be given to another class, one of ours may not.
  for name in ("my_maze", "ant", "arm"):
    braxs_registry.register_environment(name, _Registered)
  assert "my_maze" in environments.registered_environments()
  env = environments.create("my_maze", layout="open", episode_length=7)
  assert len(env.unwrapped.walls) == 0
  assert env.descriptor is env.unwrapped.descriptor
  with pytest.raises(ValueError, match="did you mean 'my_maze'"):
    environments.create("My_Mase")
  # As of any user's own, its numbers are looked at.
  with pytest.raises(ValueError, match="env.reset returned nan in obs"):
    environments.create("ant", wrong=True)
  assert environments.create("arm").action_size == 8


def test_the_point_maze_needs_no_brax(no_brax):
  env = environments.create("point_maze", layout="open")
  assert len(env.unwrapped.walls) == 0
  state = env.reset(jax.random.split(jax.random.key(0), 2))
  assert env.advance(state, jnp.ones((2, 2))).obs.shape == (2, 2)


@pytest.mark.parametrize("name, advice", [
  ("Half_cheetah", "did you mean 'halfcheetah'"),
  ("ALE/Pong-v5", "did you mean 'gymnasium:ALE/Pong-v5'"),
  ("my_module:Mine-v0", "did you mean 'gymnasium:my_module:Mine-v0'"),
  ("mujoco_playground:Hill", "did you mean 'playground:Hill'")])
def test_an_unknown_name_is_refused_without_brax(no_brax, name, advice):
  with pytest.raises(ValueError, match=re.escape(advice)) as error:
    environments.create(name)
  assert f"env_name={name!r}" in str(error.value)


@pytest.mark.parametrize("name, kwargs, message", [
  ("swimmer", {"backend": "mjx"}, "'swimmer'; give one of generalized"),
  ("point_maze", {"layout": "spiral"}, "layout='spiral' .* open, maze"),
  ("sphere", {"num_dimensions": 1}, "num_dimensions=1 is not a count"),
  ("{}:mak", {}, "has no function 'mak'; did you mean 'make'"),
  ("{}x:make", {}, "there is no module 'toy_.*x' on sys.path or in /"),
  ("{}:needs", {}, "missing a required argument: 'layout'; it takes .layout")])
def test_nonsense_is_refused_in_one_line(toy, name, kwargs, message):
  with pytest.raises(ValueError, match=message) as error:
    environments.create(name.format(toy), **kwargs)
  assert "\n" not in str(error.value)


def test_a_users_function_is_found_in_the_working_directory(toy):
  env = environments.create(f"{toy}:make", layout="maze", backend="spring")
  assert len(env.unwrapped.walls) == 2
  assert env.unwrapped.backend == "spring"
  # An error inside of a module is shown as it is.
  with pytest.raises(ModuleNotFoundError, match="no_such_module_of_ours"):
    environments.create(f"{toy}_broken:make")
