"""Tests of how brax is imported, and MuJoCo kept from writing files."""

import importlib
import importlib.util
import os
import subprocess
import sys

import jax
import mujoco
import numpy as np
import pytest

from qdrl_haiku import environments


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
  data = mujoco.MjData(mujoco.MjModel.from_xml_string(
    "<mujoco><compiler settotalmass='1'/><worldbody><body><freejoint/>"
    "<geom size='1'/></body></worldbody></mujoco>"))
  data.qpos[0] = np.nan
  mujoco.mj_step(data.model, data)


def test_whatever_environment_is_created_mujoco_leaves_no_file(untold_mujoco):
  _warn()
  (log,) = untold_mujoco.iterdir()  # As it does by itself.
  log.unlink()
  made = ["fast", f"{__name__}:make_maze", environments.PointMaze()]
  if importlib.util.find_spec("gymnasium") is not None:
    made.append("gymnasium:Pendulum-v1")
  for env in made:
    mujoco.set_mju_user_warning(None)
    environments.create(env)
    with pytest.warns(UserWarning, match="Nan, Inf or huge value") as said:
      _warn()
    assert not any("settotalmass" in str(x.message) for x in said)
    assert list(untold_mujoco.iterdir()) == []


def test_mjx_finds_the_devices_of_this_process():
  environments.create("fast")
  devices = importlib.import_module("mujoco.mjx._src.io").jax.devices
  assert devices() == jax.local_devices()
  # MJX asks so whether it's on an NVIDIA GPU.
  assert devices("cpu") == jax.local_devices(backend="cpu")
  with pytest.raises(RuntimeError):
    devices("no such backend")


_OWN = """
import brax.envs
from brax.io import mjcf
print("mine")
SYS = mjcf.loads("<mujoco><worldbody><body><joint/><geom size='.1'/></body>"
                 "</worldbody></mujoco>")

def make():
  return brax.envs.get_environment("inverted_pendulum")
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["inverted_pendulum", "own:make"])
def test_brax_is_quiet(name, tmp_path):
  """Also where a user's module is what imports brax."""
  (tmp_path / "own.py").write_text(_OWN)
  code = (
    "from qdrl_haiku import environments as e;"
    "import sys; assert 'brax' not in sys.modules;"
    f"e.create({name!r})")
  result = subprocess.run(
    [sys.executable, "-W", "always", "-c", code], cwd=tmp_path,
    env=os.environ | {"PYTHONPATH": os.getcwd()},
    capture_output=True, text=True, check=True)
  said = result.stdout + result.stderr
  for word in ("warp", "JAXopt", "maintained", "ncon"):
    assert word not in said
  assert ("mine" in said) == (name == "own:make")
