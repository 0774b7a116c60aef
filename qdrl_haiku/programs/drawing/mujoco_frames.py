"""Pictures of a robot by MuJoCo's renderer, in a process of its own.

OpenGL must be chosen before MuJoCo is imported, and a driver that doesn't work
may crash its process. So this file is also the script of that process,
and imports MuJoCo there alone.
"""

import os
import pathlib
import subprocess
import sys
import tempfile
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
  import mujoco

_HEIGHT, _WIDTH = 300, 400
# It follows the robot, in the models of brax that have one.
_CAMERA = "track"
# How far one of ours is, in sizes of the robot.
_DISTANCE = 3.0
# Some of them have no light of their own.
_AMBIENT = 0.4
_START_SECONDS, _FRAME_SECONDS = 60.0, 1.0


def render_mujoco_frames(
  model: "mujoco.MjModel", q: np.ndarray
) -> np.ndarray | None:
  """Renders a robot of coordinates q [T, Q] as uint8 [T, H, W, 3].

  None where there is no OpenGL, or it doesn't work.
  """
  import mujoco

  environment = dict(os.environ)
  if sys.platform == "linux":
    # The one that needs no display.
    environment.setdefault("MUJOCO_GL", "egl")
  with tempfile.TemporaryDirectory() as folder:
    names = ("model.mjb", "q.npy", "frames.npy")
    paths = [os.path.join(folder, name) for name in names]
    mujoco.mj_saveModel(model, paths[0])
    np.save(paths[1], np.asarray(q, np.float64))
    try:
      subprocess.run(
        # -P: our neighbours' names must not hide those of libraries.
        [sys.executable, "-P", __file__, *paths], env=environment,
        # Where it may write its log.
        cwd=folder, check=True, capture_output=True,
        timeout=_START_SECONDS + _FRAME_SECONDS * len(q))
    except (OSError, subprocess.SubprocessError):
      return None
    return np.load(paths[2])


def _main(model_path: str, q_path: str, frames_path: str) -> None:
  """Reads a model and coordinates, and writes pictures."""
  import mujoco

  model = mujoco.MjModel.from_binary_path(model_path)
  model.vis.headlight.ambient[:] = _AMBIENT
  data = mujoco.MjData(model)
  cameras = {model.camera(i).name for i in range(model.ncam)}
  coordinates = np.load(q_path)
  data.qpos = coordinates[0]
  mujoco.mj_forward(model, data)
  camera = _CAMERA if _CAMERA in cameras else _tracking_camera(model, data)
  renderer = mujoco.Renderer(model, _HEIGHT, _WIDTH)
  # Without a graphics card these would take most of the time.
  renderer.scene.flags[mujoco.mjtRndFlag.mjRND_SHADOW] = False
  renderer.scene.flags[mujoco.mjtRndFlag.mjRND_REFLECTION] = False
  frames = np.empty((len(coordinates), _HEIGHT, _WIDTH, 3), np.uint8)
  for frame, q in zip(frames, coordinates, strict=True):
    data.qpos = q
    mujoco.mj_forward(model, data)
    renderer.update_scene(data, camera)
    renderer.render(out=frame)
  np.save(pathlib.Path(frames_path), frames)


def _tracking_camera(
  model: "mujoco.MjModel", data: "mujoco.MjData"
) -> "mujoco.MjvCamera":
  """Returns a camera that follows the first body, as far as it's large."""
  import mujoco

  moves = model.geom_bodyid > 0
  reach = np.linalg.norm(data.geom_xpos[moves] - data.xpos[1], axis=1)
  camera = mujoco.MjvCamera()
  camera.type = mujoco.mjtCamera.mjCAMERA_TRACKING
  camera.trackbodyid = 1
  camera.distance = _DISTANCE * np.max(reach + model.geom_rbound[moves])
  camera.azimuth, camera.elevation = 90, -20
  return camera


if __name__ == "__main__":
  _main(*sys.argv[1:])
