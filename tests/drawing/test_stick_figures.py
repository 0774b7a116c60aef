"""Tests of stick figures."""

import types

import matplotlib
import mujoco
import numpy as np
import pytest
from matplotlib.figure import Figure
from scipy.spatial.transform import Rotation

from qdrl_haiku.drawing import stick_figures

_RNG = np.random.default_rng(0)
# Links 0 and 1 are sticks, and so is a geom of the world.
_MODEL = mujoco.MjModel.from_xml_string("""
<mujoco>
  <worldbody>
    <geom type="plane" size="1 1 1" pos="0 0 -2"/>
    <geom type="capsule" fromto="-9 0 0 9 0 0" size="0.01"/>
    <body>
      <freejoint/>
      <geom type="capsule" fromto="1 2 3 1 2 7" size="0.5"/>
      <geom type="sphere" pos="0 0 1" size="0.25"/>
      <body>
        <joint/>
        <geom type="box" size="0.1 0.4 0.2" pos="1 0 0" euler="0 0 90"/>
        <geom type="cylinder" fromto="0 0 0 2 0 0" size="0.3"/>
      </body>
    </body>
  </worldbody>
</mujoco>
""")
_SYS = types.SimpleNamespace(mj_model=_MODEL)


def _drawn(figure, t=0):
  """The shapes drawn, the last on top, by their colours, and the axes."""
  axes = Figure().subplots()
  figure.draw(axes, t)
  (shapes,) = [
    x for x in axes.collections if x.__class__.__name__ == "PolyCollection"
  ]
  outlines = [path.vertices for path in shapes.get_paths()]
  return outlines, shapes.get_facecolor(), axes


def _still(pos, num_steps=1):
  """Links [L, 3] that rest where they are, without a turn."""
  pos = np.broadcast_to(np.array(pos, float), (num_steps, len(pos), 3))
  rot = np.zeros((*pos.shape[:2], 4))
  rot[..., 0] = 1
  return pos.copy(), rot


def test_vectors_are_rotated_as_scipy_does():
  quaternions = _RNG.normal(size=(20, 4))
  quaternions /= np.linalg.norm(quaternions, axis=1, keepdims=True)
  vectors = _RNG.normal(size=(20, 3))
  expected = Rotation.from_quat(quaternions, scalar_first=True).apply(vectors)
  np.testing.assert_allclose(
    stick_figures.rotate(vectors, quaternions), expected, atol=1e-12
  )
  quarter = np.array([0.5**0.5, 0, 0, 0.5**0.5])  # Around z.
  np.testing.assert_allclose(
    stick_figures.rotate(np.eye(3), quarter[None]),
    [[0, 1, 0], [-1, 0, 0], [0, 0, 1]],
    atol=1e-12,
  )


def test_sticks_are_the_geoms():
  sticks = stick_figures.read_sticks(_MODEL)
  assert sticks.ground == -2
  np.testing.assert_array_equal(sticks.link, [-1, 0, 0, 1, 1])
  np.testing.assert_allclose(sticks.radius, [0.01, 0.5, 0.25, 0.2, 0.3])
  expected = [
    [[-9, 0, 0], [9, 0, 0]],
    [[1, 2, 3], [1, 2, 7]],
    [[0, 0, 1], [0, 0, 1]],
    [[0.6, 0, 0], [1.4, 0, 0]],  # Turned by a quarter, so y became -x.
    [[0, 0, 0], [2, 0, 0]],
  ]
  for ends, (a, b) in zip(sticks.ends, expected, strict=True):
    matches = [np.allclose(ends, pair, atol=1e-6) for pair in ([a, b], [b, a])]
    assert any(matches), ends


@pytest.mark.parametrize("b", [(3.0, 1.0), (-1.0, -2.0), (0.0, 2.0)])
def test_a_stadium_is_all_that_is_near_a_segment(b):
  a, b, radius = np.array([0.0, 2.0]), np.array(b), 0.5
  outline = stick_figures.stadium(a, b, radius)
  along = np.linspace(0, 1, 2001)[:, None] * (b - a) + a
  distance = np.linalg.norm(outline[:, None] - along[None], axis=-1).min(axis=1)
  np.testing.assert_allclose(distance, radius, atol=1e-3)
  x, y = np.append(outline, outline[:1], axis=0).T
  area = abs(np.sum(x[:-1] * y[1:] - x[1:] * y[:-1])) / 2
  full = np.pi * radius**2 + 2 * radius * np.linalg.norm(b - a)
  assert 0.95 * full < area <= full


def test_a_robot_in_a_plane_is_seen_from_its_side():
  pos, rot = _still([[0, 5, 0], [1, 5, 4]])
  outlines, *_ = _drawn(stick_figures.StickFigure(_SYS, pos, rot))
  sphere = outlines[
    int(np.argmin([abs(np.ptp(x[:, 0]) - 0.5) for x in outlines]))
  ]
  # Its x is to the right; its z = 1 is up, which y moves little.
  assert np.mean(sphere[:, 0]) == pytest.approx(0, abs=0.05)
  assert 1 < np.mean(sphere[:, 1]) < 1.6


def test_a_robot_on_the_ground_is_seen_from_above():
  pos, rot = _still([[0, 0, 0], [5, 3, 0]])
  outlines, *_ = _drawn(stick_figures.StickFigure(_SYS, pos, rot))
  middles = [(x.min(axis=0) + x.max(axis=0)) / 2 for x in outlines]
  # The cylinder of link 1 reaches from (5, 3) to (7, 3).
  assert any(np.allclose(middle, (6, 3), atol=0.01) for middle in middles)


def test_links_turn_and_move_what_belongs_to_them():
  pos, rot = _still([[0, 0, 0], [5, 3, 0]])
  rot[0, 1] = [0.5**0.5, 0, 0, 0.5**0.5]  # A quarter around z.
  outlines, *_ = _drawn(stick_figures.StickFigure(_SYS, pos, rot))
  middles = [(x.min(axis=0) + x.max(axis=0)) / 2 for x in outlines]
  assert any(np.allclose(middle, (5, 4), atol=0.01) for middle in middles)


@pytest.mark.parametrize(
  ("pos", "nearer"),
  [([[0, -9, 0], [0, 9, 1]], 0), ([[0, 0, -20], [1, 1, 20]], 1)],
)
def test_what_is_nearer_is_drawn_later(pos, nearer):
  """Seen from where y is negative, and from above."""
  figure = stick_figures.StickFigure(_SYS, *_still(pos))
  _, colors, _ = _drawn(figure)
  order = [
    link
    for color in colors
    for link in (0, 1)
    if np.allclose(color, matplotlib.colormaps["tab10"](link))
  ]
  assert order == [1 - nearer] * 2 + [nearer] * 2


def test_who_walks_far_is_followed_and_who_does_not_is_not():
  pos, rot = _still([[0, 5, 0], [1, 5, 4]], num_steps=11)
  far = pos + np.linspace(0, 100, 11)[:, None, None] * [1, 0, 0]
  near = pos + np.linspace(0, 1, 11)[:, None, None] * [1, 0, 0]
  for path, moves in ((far, True), (near, False)):
    figure = stick_figures.StickFigure(_SYS, path, rot)
    limits = [_drawn(figure, t)[2].get_xlim() for t in range(11)]
    widths = np.ptp(limits, axis=1)
    np.testing.assert_allclose(widths, widths[0])
    assert widths[0] < 30
    assert (limits[0] != limits[10]) == moves
    # All of the robot is in the picture all of the time.
    for t, (low, high) in enumerate(limits):
      assert low < path[t, :, 0].min() - 0.25
      assert high > path[t, :, 0].max() + 2.3


def test_the_ground_is_drawn_where_it_is():
  pos, rot = _still([[0, 0, 0], [5, 3, 0]])
  figure = stick_figures.StickFigure(_SYS, pos, rot)
  axes = _drawn(figure)[2]
  (lines,) = [
    x for x in axes.collections if x.__class__.__name__ == "LineCollection"
  ]
  assert len(lines.get_segments()) > 4
  none = mujoco.MjModel.from_xml_string(
    "<mujoco><worldbody><body><freejoint/><geom size='1'/></body></worldbody>"
    "</mujoco>"
  )
  floating = stick_figures.StickFigure(
    types.SimpleNamespace(mj_model=none), *_still([[0, 0, 0]])
  )
  assert len(_drawn(floating)[2].collections) == 1
