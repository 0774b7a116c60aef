"""Tests of how brax is imported, and MuJoCo kept from writing files."""

import importlib.util
import subprocess
import sys

import jax.numpy as jnp
import mujoco
import numpy as np
import pytest

from qdrl_haiku import environments
from qdrl_haiku.environments import brax_loading


def make_maze():
  """Returns an environment, as a user's own function does."""
  return environments.PointMaze()


@pytest.fixture
def untold_mujoco(tmp_path, monkeypatch):
  """MuJoCo as it is when it's first imported, and an empty folder."""
  before = mujoco.get_mju_user_warning()
  mujoco.set_mju_user_warning(None)
  (tmp_path / "empty").mkdir()
  monkeypatch.chdir(tmp_path / "empty")
  yield tmp_path / "empty"
  mujoco.set_mju_user_warning(before)


def _warn():
  """Has MuJoCo warn of a word in a model, and of one that is unstable."""
  data = mujoco.MjData(
    mujoco.MjModel.from_xml_string(
      "<mujoco><compiler settotalmass='1'/><worldbody><body><freejoint/>"
      "<geom size='1'/></body></worldbody></mujoco>"
    )
  )
  data.qpos[0] = np.nan
  mujoco.mj_step(data.model, data)


def test_mujoco_alone_leaves_a_file(untold_mujoco):
  _warn()
  assert [x.name for x in untold_mujoco.iterdir()] == ["MUJOCO_LOG.TXT"]


@pytest.mark.parametrize("env", [
  "fast",
  pytest.param(
    "gymnasium:Pendulum-v1",
    marks=pytest.mark.skipif(
      importlib.util.find_spec("gymnasium") is None,
      reason="Gymnasium is not installed (the extra [gymnasium])",
    ),
  ),
  f"{__name__}:make_maze",
  environments.PointMaze(),
])
def test_whatever_environment_is_created_mujoco_leaves_no_file(
  untold_mujoco, env
):
  environments.create(env)
  with pytest.warns(UserWarning, match="Nan, Inf or huge value") as said:
    _warn()
  assert not any("settotalmass" in str(x.message) for x in said)
  assert list(untold_mujoco.iterdir()) == []


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
  )  # fmt: skip
  said = result.stdout + result.stderr
  for word in ("warp", "JAXopt", "maintained", "ncon"):
    assert word not in said


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


def test_the_repaired_clip_is_that_of_numpy():
  brax_loading.brax_class("swimmer")
  import brax.fluid

  x = jnp.array([-1.0, 0.5, 2.0])
  np.testing.assert_array_equal(brax.fluid.jp.clip(x, a_min=0), [0, 0.5, 2])
  np.testing.assert_array_equal(brax.fluid.jp.clip(x, max=1), [-1, 0.5, 1])
