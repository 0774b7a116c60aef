"""Stick figures of brax's robots, from the positions of their links."""

from typing import Any, NamedTuple

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PolyCollection

# MuJoCo's numbers of kinds of geoms.
_PLANE, _HEIGHT_FIELD, _SPHERE, _CAPSULE, _CYLINDER, _MESH = 0, 1, 2, 3, 5, 7
# Azimuth and elevation of the eye, in radians.
_FROM_THE_SIDE = (0.0, 0.1)
_FROM_ABOVE = (0.0, np.pi / 2)
_FROM_A_CORNER = (0.35, 0.35)
_MARGIN = 1.1
_LEAST_ASPECT = 0.6
# Of a half circle.
_CORNERS = 9


class Sticks(NamedTuple):
  """The geoms of a robot, each as a segment of a line that has a radius.

  Attributes:
    link: int [G], to which it belongs, -1 for the world.
    ends: [G, 2, 3], in the frame of the link.
    radius: [G], in metres.
    ground: the height of the ground, or None if there is none.
  """

  link: np.ndarray
  ends: np.ndarray
  radius: np.ndarray
  ground: float | None


class StickFigure:
  """An episode of a robot, of which each moment can be drawn."""

  def __init__(self, sys: Any, pos: np.ndarray, rot: np.ndarray) -> None:
    """Finds the view from which most is seen.

    Args:
      sys: brax's system.
      pos: [T, L, 3], of the links, in metres.
      rot: [T, L, 4], of the links, quaternions, w first.
    """
    sticks = read_sticks(sys.mj_model)
    self._sticks = sticks
    # The world is one more link, the last, which never moves.
    pos = np.concatenate([pos, np.zeros_like(pos[:, :1])], axis=1)
    rest = np.broadcast_to([1.0, 0, 0, 0], rot[:, :1].shape)
    rot = np.concatenate([rot, rest], axis=1)
    ends = rotate(sticks.ends, rot[:, sticks.link, None])
    ends = ends + pos[:, sticks.link, None]  # [T, G, 2, 3]
    self._right, self._up = _view(pos[:, :-1])
    self._screen = np.stack([ends @ self._right, ends @ self._up], axis=-1)
    to_the_eye = np.cross(self._right, self._up)
    self._nearness = np.mean(ends @ to_the_eye, axis=-1)

    root = pos[:, 0]
    self._nearest = root
    moves = sticks.link >= 0
    radius = sticks.radius[moves, None, None]
    seen = self._screen[:, moves]
    centre = root @ np.stack([self._right, self._up], axis=1)
    size = np.max(np.abs(seen - centre[:, None, None]))
    # What stays where it is is not followed.
    self._centre = np.where(np.ptp(centre, axis=0) > size, centre, 0.0)
    around = seen - self._centre[:, None, None]
    low = np.min(around - radius, axis=(0, 1, 2))
    high = np.max(around + radius, axis=(0, 1, 2))
    self._centre = self._centre + (low + high) / 2
    reach = _MARGIN * (high - low) / 2
    self._reach = np.maximum(reach, _LEAST_ASPECT * reach[::-1])

  def draw(self, axes: Axes, t: int) -> None:
    """Draws one moment.

    Args:
      axes: empty ones.
      t: which, from 0 on.
    """
    order = np.argsort(self._nearness[t])
    links = self._sticks.link[order]
    colors = [
      "0.6" if link < 0 else colormaps["tab10"](link % 10) for link in links
    ]
    ends, radius = self._screen[t, order], self._sticks.radius[order]
    shapes = [
      stadium(a, b, r) for (a, b), r in zip(ends, radius, strict=True)
    ]
    if self._sticks.ground is not None:
      axes.add_collection(
        LineCollection(list(self._ground(t)), colors="0.8", zorder=0)
      )
    axes.add_collection(
      PolyCollection(
        shapes, facecolors=colors, edgecolors="0.2", linewidths=0.5
      )
    )
    low, high = self._centre[t] - self._reach, self._centre[t] + self._reach
    axes.set(xlim=(low[0], high[0]), ylim=(low[1], high[1]), aspect="equal")
    axes.set(xticks=[], yticks=[])

  def _ground(self, t: int) -> np.ndarray:
    """Returns lines of the ground around the robot, on the screen [n, 2, 2]."""
    reach = self._reach.max()
    spacing = 10.0 ** np.floor(np.log10(2 * reach))
    cells = int(np.ceil(4 * reach / spacing))
    along = np.array([-cells, cells]) * spacing
    x, y = np.round(self._nearest[t, :2] / spacing) * spacing
    offsets = np.arange(-cells, cells + 1) * spacing
    height = self._sticks.ground
    lines = [[(x + a, y + o, height) for a in along] for o in offsets]
    lines += [[(x + o, y + a, height) for a in along] for o in offsets]
    points = np.array(lines)
    return np.stack([points @ self._right, points @ self._up], axis=-1)


def read_sticks(model: Any) -> Sticks:
  """Reads what a robot consists of.

  Args:
    model: MuJoCo's. Boxes and ellipsoids become sticks along their longest
      axis, meshes become spheres.

  Returns:
    The sticks.
  """
  link, ends, radius, ground = [], [], [], None
  for i in range(model.ngeom):
    kind, size = model.geom_type[i], model.geom_size[i]
    if kind == _PLANE:
      ground = float(model.geom_pos[i][2])
    if kind in (_PLANE, _HEIGHT_FIELD):
      continue
    half = np.zeros(3)
    if kind in (_CAPSULE, _CYLINDER):
      half[2], thickness = size[1], size[0]
    elif kind in (_SPHERE, _MESH):
      thickness = model.geom_rbound[i]
    else:
      thickness, longest = np.median(size), np.argmax(size)
      half[longest] = size[longest]
    quaternion, middle = model.geom_quat[i], model.geom_pos[i]
    link.append(model.geom_bodyid[i] - 1)
    ends.append(middle + rotate(np.stack([-half, half]), quaternion))
    radius.append(thickness)
  return Sticks(
    np.array(link, int), np.array(ends), np.array(radius), ground
  )


def rotate(vectors: np.ndarray, quaternions: np.ndarray) -> np.ndarray:
  """Rotates vectors.

  Args:
    vectors: [..., 3].
    quaternions: [..., 4], of norm 1, w first.

  Returns:
    The vectors [..., 3].
  """
  w, axis = quaternions[..., :1], quaternions[..., 1:]
  twice = 2 * np.cross(axis, vectors)
  return vectors + w * twice + np.cross(axis, twice)


def stadium(a: np.ndarray, b: np.ndarray, radius: float) -> np.ndarray:
  """Returns the outline of all that is near a segment.

  Args:
    a: [2], one end.
    b: [2], the other; may be the same.
    radius: how near.

  Returns:
    The corners of a polygon, [n, 2].
  """
  angle = np.arctan2(*(b - a)[::-1])
  turn = np.linspace(np.pi / 2, 3 * np.pi / 2, _CORNERS) + angle
  arc = radius * np.stack([np.cos(turn), np.sin(turn)], axis=1)
  return np.concatenate([a + arc, b - arc])


def _view(pos: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """Returns what points right and what points up on the screen, [3] each.

  Args:
    pos: [T, L, 3].
  """
  span = np.ptp(pos.reshape(-1, 3), axis=0)
  flat = span < 1e-2 * max(span.max(), 1e-6)
  azimuth, elevation = (
    _FROM_THE_SIDE if flat[1] else _FROM_ABOVE if flat[2] else _FROM_A_CORNER
  )
  sin, cos = np.sin(azimuth), np.cos(azimuth)
  depth = np.sin(elevation)
  return (
    np.array([cos, sin, 0.0]),
    np.array([-sin * depth, cos * depth, np.cos(elevation)]),
  )
