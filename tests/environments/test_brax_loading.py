"""Tests of how MuJoCo is kept from writing into the current directory."""

import importlib.util

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
