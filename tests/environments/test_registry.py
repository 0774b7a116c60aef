import functools
import os
import pathlib
import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qdrl_haiku import environments
from qdrl_haiku.environments import brax_loading, registry

_ROOT = pathlib.Path(__file__).parents[2]
TOY = '''
from qdrl_haiku import environments


class Wide(environments.PointMaze):
  def __init__(self, layout, backend):
    super().__init__(layout)
    self.backend = backend


def make(layout="open", backend="none"):
  return Wide(layout, backend)


def needs(layout):
  return Wide(layout, "none")


NUMBER = 3
'''


@pytest.fixture
def toy(tmp_path, monkeypatch):
  """A module in a working directory that isn't on the path."""
  name = f"toy_{tmp_path.name}"
  (tmp_path / f"{name}.py").write_text(TOY)
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


OURS = {
  "ant_omni", "ant_trap", "ant_uni", "arm", "halfcheetah_uni", "hopper_uni",
  "humanoid_omni", "humanoid_uni", "point_maze", "rastrigin", "sphere",
  "walker2d_uni",
}


def test_the_table_has_every_environment_of_brax_and_ours():
  brax_loading.brax_class("fast")
  import brax.envs

  assert set(environments.names()) == {*brax.envs._envs, *OURS}


def test_the_defaults_are_taken(toy):
  maze = environments.create("point_maze")
  assert (maze.episode_length, maze.action_repeat) == (100, 1)
  pendulum = environments.create("inverted_pendulum")
  assert pendulum.episode_length == 1000
  assert pendulum.unwrapped.backend == "generalized"
  assert environments.create(f"{toy}:make").episode_length == 1000


def test_an_environment_that_exists_is_taken_as_it_is():
  maze = environments.PointMaze()
  env = environments.create(maze, episode_length=7, action_repeat=2)
  assert env.unwrapped is maze
  assert (env.episode_length, env.action_repeat) == (7, 2)
  assert environments.create(maze).episode_length == 1000
  with pytest.raises(ValueError, match="layout, backend has no effect"):
    environments.create(maze, layout="open", backend="spring")


def _make():
  return environments.PointMaze()


@pytest.mark.parametrize(("env", "message"), [
  (environments.PointMaze, r"env=PointMaze is a class; give .*PointMaze\("),
  (_make, "env=function has no .*; call it and give .*'package.module:func"),
  (functools.partial(_make), "env=partial has no .*; call it and give "),
  (None, "env=NoneType has no method 'reset'; give an object with reset"),
])
def test_what_is_no_instance_is_refused_by_what_to_give(env, message):
  with pytest.raises(ValueError, match=message):
    environments.create(env)


@pytest.mark.parametrize("make", [
  lambda gymnasium: gymnasium.make("Pendulum-v1"),
  lambda gymnasium: gymnasium.make_vec("Pendulum-v1", num_envs=2),
  lambda gymnasium: gymnasium.spec("Pendulum-v1"),
])
def test_an_environment_of_gymnasium_is_refused_by_its_name(make):
  env = make(pytest.importorskip("gymnasium"))
  with pytest.raises(ValueError, match="give 'gymnasium:Pendulum-v1'"):
    environments.create(env)


@pytest.mark.parametrize("make", [
  lambda gymnasium: gymnasium.Env,
  lambda gymnasium: gymnasium.Env(),
  lambda gymnasium: gymnasium.wrappers.ClipAction(
    gymnasium.make("Pendulum-v1")
  ),
])
def test_of_gymnasium_what_has_no_name_is_to_be_registered(make):
  env = make(pytest.importorskip("gymnasium"))
  with pytest.raises(ValueError, match=r"gymnasium.register\('Mine-v0', "):
    environments.create(env)


def test_environments_that_are_batches_already_are_refused():
  pytest.importorskip("gymnasium")
  env = environments.create("gymnasium:Pendulum-v1")
  with pytest.raises(ValueError, match="GymnasiumEnvironment is any number"):
    environments.create(env)
  maze = environments.create("point_maze")
  with pytest.raises(ValueError, match="give .* its `unwrapped`"):
    environments.create(maze)
  with brax_loading.quiet_brax():
    pendulum = brax_loading.brax_class("inverted_pendulum")()
    from brax.envs.wrappers import training

    for batch in (
      training.VmapWrapper(pendulum),
      training.AutoResetWrapper(training.VmapWrapper(pendulum, 4)),
    ):
      with pytest.raises(ValueError, match="without brax's VmapWrapper"):
        environments.create(batch)


@pytest.fixture
def braxs_registry(monkeypatch):
  """brax's own, to which a test may add."""
  brax_loading.brax_class("fast")
  import brax.envs

  monkeypatch.setattr(brax.envs, "_envs", dict(brax.envs._envs))
  return brax.envs


class _Registered(environments.PointMaze):
  """An environment that a user registers, with a descriptor and a setting."""

  def __init__(self, layout="maze", wrong=False):
    super().__init__(layout)
    self._wrong = wrong

  def reset(self, key):
    state = super().reset(key)
    return state.replace(obs=state.obs * jnp.nan) if self._wrong else state


def test_a_name_registered_with_brax_is_known(braxs_registry):
  braxs_registry.register_environment("my_maze", _Registered)
  assert "my_maze" in environments.names()
  env = environments.create("my_maze", layout="open", episode_length=7)
  assert isinstance(env.unwrapped, _Registered)
  assert len(env.unwrapped.walls) == 0
  assert env.episode_length == 7
  assert env.descriptor is env.unwrapped.descriptor
  assert environments.create("my_maze").episode_length == 1000
  with pytest.raises(ValueError, match="did you mean 'my_maze'"):
    environments.create("My_Mase")
  with pytest.raises(ValueError, match="layot='open' .* 'my_maze'; did you"):
    environments.create("my_maze", layot="open")
  # As of any user's own, its numbers are looked at.
  with pytest.raises(ValueError, match="env.reset returned NaN in obs"):
    environments.create("my_maze", wrong=True)


def test_one_of_braxs_names_may_be_given_to_another_class(braxs_registry):
  braxs_registry.register_environment("ant", _Registered)
  assert isinstance(environments.create("ant").unwrapped, _Registered)
  with pytest.raises(ValueError, match="env.reset returned NaN in obs"):
    environments.create("ant", wrong=True)


def test_our_own_names_stay_ours(braxs_registry):
  braxs_registry.register_environment("arm", _Registered)
  assert environments.create("arm").action_size == 8


def test_what_an_environment_that_exists_returns_is_checked():
  maze = environments.PointMaze()
  reset = maze.reset
  maze.reset = lambda key: reset(key).replace(obs=jnp.full(2, jnp.nan))
  with pytest.raises(ValueError, match="nan|finite"):
    environments.create(maze)


def test_arguments_override_the_defaults():
  env = environments.create(
    "inverted_pendulum", backend="spring", episode_length=7, action_repeat=2,
    n_frames=3,
  )
  assert env.unwrapped.backend == "spring"
  assert (env.episode_length, env.action_repeat) == (7, 2)
  assert env.unwrapped._n_frames == 3


# The swimmer is the one that brax alone can't step under jax 0.10, the ant has
# the most kinds of leaves.
@pytest.mark.parametrize("name, sizes", [("swimmer", (8, 2)), ("ant", (27, 8))])
def test_environments_of_brax_fit_the_interface(name, sizes):
  env = environments.create(name)
  assert (env.observation_size, env.action_size) == sizes


def test_the_repaired_clip_is_that_of_numpy():
  brax_loading.brax_class("swimmer")
  import brax.fluid

  x = jnp.array([-1.0, 0.5, 2.0])
  np.testing.assert_array_equal(brax.fluid.jp.clip(x, a_min=0), [0, 0.5, 2])
  np.testing.assert_array_equal(brax.fluid.jp.clip(x, max=1), [-1, 0.5, 1])


def test_the_point_maze_needs_no_brax(no_brax):
  env = environments.create("point_maze", layout="open")
  state = env.reset(jax.random.split(jax.random.key(0), 2))
  assert env.step(state, jnp.ones((2, 2))).obs.shape == (2, 2)
  assert len(env.unwrapped.walls) == 0


@pytest.mark.parametrize("name, advice", [
  ("half_cheetah", "did you mean 'halfcheetah'"),
  ("Ant", "did you mean 'ant'"),
  ("HALFCHEETAH", "did you mean 'halfcheetah'"),
  ("qqq", "give one of ant, ant_omni, "),
  ("Pendulum-v1", "did you mean 'gymnasium:Pendulum-v1'"),
  ("ALE/Pong-v5", "did you mean 'gymnasium:ALE/Pong-v5'"),
  ("gym:Pendulum-v1", "did you mean 'gymnasium:Pendulum-v1'"),
  ("Gymnasium:Pendulum-v1", "did you mean 'gymnasium:Pendulum-v1'"),
  ("gymnasum:Pendulum-v1", "did you mean 'gymnasium:Pendulum-v1'"),
  ("my_module:Mine-v0", "did you mean 'gymnasium:my_module:Mine-v0'"),
  ("Playground:Hill", "did you mean 'playground:Hill'"),
  ("mujoco_playground:Hill", "did you mean 'playground:Hill'"),
  ("brax:ant", "did you mean 'ant'"),
])
def test_an_unknown_name_is_refused_without_brax(no_brax, name, advice):
  with pytest.raises(ValueError, match=re.escape(advice)) as error:
    environments.create(name)
  assert "'gymnasium:<id>' or 'playground:<name>'" in str(error.value)
  assert "package.module:function" in str(error.value)
  assert f"env_name={name!r}" in str(error.value)


@pytest.mark.parametrize("name, kwargs, message", [
  ("ant", {"backend": "sprng"}, "backend='sprng' .* did you mean 'spring'"),
  ("swimmer", {"backend": "mjx"}, "'swimmer'; give one of generalized"),
  ("point_maze", {"backend": "spring"}, "'point_maze'; leave it out"),
  ("point_maze", {"layot": "open"}, "layot='open' .* did you mean 'layout'"),
  ("ant", {"healthy": 1}, "healthy=1 is no argument of 'ant'; did you mean"),
  ("ant_uni", {"healthy": 1}, "healthy=1 is no argument of 'ant_uni'; did you"),
  ("point_maze", {"episode_length": 0}, "episode_length=0 must be at least 1"),
])
def test_nonsense_is_refused_in_one_line(name, kwargs, message):
  with pytest.raises(ValueError, match=message) as error:
    environments.create(name, **kwargs)
  assert "\n" not in str(error.value)


def test_a_users_function_is_found_in_the_working_directory(toy):
  env = environments.create(
    f"{toy}:make", layout="maze", backend="spring", episode_length=9
  )
  assert type(env.unwrapped).__name__ == "Wide"
  assert len(env.unwrapped.walls) == 2
  assert env.unwrapped.backend == "spring"
  assert env.episode_length == 9
  state = env.reset(jax.random.key(0))
  assert env.step(state, jnp.ones(2)).obs.shape == (2,)


@pytest.mark.parametrize("path, kwargs, message", [
  ("{}:mak", {}, "has no function 'mak'; did you mean 'make'"),
  ("{}:NUMBER", {}, "has no function 'NUMBER'"),
  ("{}x:make", {}, "there is no module 'toy_.*x' on sys.path or in /"),
  ("{}:", {}, "give it as 'package.module:function'"),
  ("{}:make", {"layouts": 1}, "layouts=1 is no argument of .* 'layout'"),
  ("{}:needs", {}, "missing a required argument: 'layout'; give it"),
  ("{}:needs", {"layout": "open", "backend": "mjx"}, "backend='mjx' is no arg"),
])
def test_a_users_mistake_is_named(toy, path, kwargs, message):
  with pytest.raises(ValueError, match=message):
    environments.create(path.format(toy), **kwargs)


def test_an_error_inside_a_users_module_is_shown_as_it_is(toy):
  with pytest.raises(ModuleNotFoundError, match="no_such_module_of_ours"):
    environments.create(f"{toy}_broken:make")


@pytest.mark.slow
def test_brax_is_quiet():
  code = (
    "from qdrl_haiku import environments as e;"
    "import sys; assert 'brax' not in sys.modules;"
    "e.create('inverted_pendulum')"
  )
  result = subprocess.run(
    [sys.executable, "-W", "always", "-c", code],
    capture_output=True, text=True, check=True,
  )
  said = result.stdout + result.stderr
  for word in ("warp", "JAXopt", "maintained", "ncon"):
    assert word not in said


@pytest.mark.slow
def test_mujoco_leaves_no_file_and_its_warnings_are_shown(tmp_path):
  """The model of the halfcheetah has a word that MuJoCo 4 warns of."""
  (tmp_path / "users_robots.py").write_text(
    "import brax.envs\n"
    "def make():\n"
    "  return brax.envs._envs['halfcheetah'](backend='spring')\n"
  )
  code = (
    "import sys, mujoco;"
    "from qdrl_haiku import environments as e;"
    "e.create(sys.argv[1]);"
    # As if one that is stepped had become unstable.
    "data = mujoco.MjData(mujoco.MjModel.from_xml_string('<mujoco>"
    "<worldbody><body><freejoint/><geom size=\"1\"/></body></worldbody>"
    "</mujoco>'));"
    "data.qpos[0] = float('nan');"
    "mujoco.mj_step(data.model, data)"
  )
  (tmp_path / "empty").mkdir()
  for name in ("halfcheetah", "users_robots:make"):
    result = subprocess.run(
      [sys.executable, "-c", code, name],
      cwd=tmp_path / "empty",
      env=os.environ | {"PYTHONPATH": f"{_ROOT}:{tmp_path}"},
      capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "settotalmass" not in result.stderr
    assert "UserWarning: Nan, Inf or huge value in QPOS" in result.stderr
    assert list((tmp_path / "empty").iterdir()) == []


def test_what_others_print_while_brax_is_imported_is_shown(
  monkeypatch, capsys
):
  brax_loading.brax_class("fast")
  real = __import__

  def talking(name, *args, **kwargs):
    if name == "brax.envs":
      print("Failed to import warp: no module")
      print("something else")
    return real(name, *args, **kwargs)

  monkeypatch.setattr("builtins.__import__", talking)
  brax_loading.brax_class("fast")
  assert capsys.readouterr().out == "something else\n"


def test_a_robot_with_a_descriptor_takes_the_arguments_of_brax():
  env = environments.create(
    "hopper_uni", backend="positional", episode_length=7, n_frames=3,
    healthy_reward=2.0,
  )
  assert env.episode_length == 7
  assert env.unwrapped.backend == "positional"
  assert env.unwrapped._n_frames == 3
  assert env.unwrapped._healthy_reward == 2


def test_every_default_is_one_that_the_environment_can_do():
  for name, defaults in registry.DEFAULTS.items():
    assert defaults.episode_length >= 1, name
    assert defaults.backend is None or defaults.backend in defaults.backends
