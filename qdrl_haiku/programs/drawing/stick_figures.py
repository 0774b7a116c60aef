"""Robots of brax as lines, from the positions of their links."""

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
  import mujoco

# MuJoCo's numbers of kinds of geoms.
_PLANE, _HEIGHT_FIELD, _CAPSULE, _CYLINDER = 0, 1, 3, 5
# Azimuth and elevation of the eye, in radians.
_AZIMUTH, _ELEVATION = 0.2, 0.3


def stick_figure_lines(
  model: "mujoco.MjModel", pos: np.ndarray, rot: np.ndarray
) -> np.ndarray:
  """Returns a robot's geoms as lines, seen obliquely from the side.

  Args:
    model: MuJoCo's. Each geom is a line along its longest axis.
    pos: [..., L, 3], of the links, in metres.
    rot: [..., L, 4], of the links, quaternions, w first.

  Returns:
    Float [..., 3 * G, 2], to the right of the first link and up: both ends of
    each of the G geoms that move, and a NaN after them.
  """
  link, ends = _geoms(model)
  moved = (
    rotate_stick_figure(ends, rot[..., link, None, :]) + pos[..., link, None, :]
  )
  moved = moved - pos[..., :1, None, :] * [1, 1, 0]
  sin, cos = np.sin(_AZIMUTH), np.cos(_AZIMUTH)
  depth = np.sin(_ELEVATION)
  right = np.array([cos, sin, 0.0])
  up = np.array([-sin * depth, cos * depth, np.cos(_ELEVATION)])
  screen = np.stack([moved @ right, moved @ up], axis=-1)  # [..., G, 2, 2]
  gap = np.full_like(screen[..., :1, :], np.nan)
  lines = np.concatenate([screen, gap], axis=-2)
  return lines.reshape(*lines.shape[:-3], -1, 2)


def rotate_stick_figure(
  vectors: np.ndarray, quaternions: np.ndarray
) -> np.ndarray:
  """Rotates vectors [..., 3] by quaternions [..., 4] of norm 1, w first."""
  w, axis = quaternions[..., :1], quaternions[..., 1:]
  twice = 2 * np.cross(axis, vectors)
  return vectors + w * twice + np.cross(axis, twice)


def _geoms(model: "mujoco.MjModel") -> tuple[np.ndarray, np.ndarray]:
  """Returns the link of each geom that moves, and its ends in its frame."""
  link, ends = [], []
  for i in range(model.ngeom):
    kind, size = model.geom_type[i], np.array(model.geom_size[i])
    body = int(model.geom_bodyid[i])
    if kind in (_PLANE, _HEIGHT_FIELD) or not body:
      continue
    half = np.zeros(3)
    if kind in (_CAPSULE, _CYLINDER):
      half[2] = size[1]
    elif size.any():
      half[np.argmax(size)] = size.max()
    else:  # A mesh.
      half[2] = model.geom_rbound[i]
    middle, quaternion = model.geom_pos[i], model.geom_quat[i]
    link.append(body - 1)
    ends.append(
      middle + rotate_stick_figure(np.stack([-half, half]), quaternion))
  return np.array(link, int), np.reshape(ends, (-1, 2, 3))
