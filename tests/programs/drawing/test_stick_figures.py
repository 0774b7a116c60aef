"""Tests of stick figures."""

import mujoco
import numpy as np
from scipy.spatial.transform import Rotation

from qdrl_haiku.programs.drawing import stick_figures

_MODEL = mujoco.MjModel.from_xml_string("""
<mujoco>
  <worldbody>
    <geom type="plane" size="1 1 1" pos="0 0 -2"/>
    <geom type="capsule" fromto="-9 0 0 9 0 0" size="0.01"/>
    <body>
      <freejoint/>
      <geom type="capsule" fromto="0 0 1 0 0 5" size="0.5"/>
      <geom type="sphere" pos="0 0 1" size="0.25"/>
      <body>
        <joint/>
        <geom type="box" size="0.1 0.4 0.2" pos="0 0 2" euler="90 0 0"/>
      </body>
    </body>
  </worldbody>
</mujoco>
""")


def test_vectors_are_rotated_as_scipy_does():
  rng = np.random.default_rng(0)
  quaternions = rng.normal(size=(20, 4))
  quaternions /= np.linalg.norm(quaternions, axis=1, keepdims=True)
  vectors = rng.normal(size=(20, 3))
  expected = Rotation.from_quat(quaternions, scalar_first=True).apply(vectors)
  np.testing.assert_allclose(
    stick_figures.rotate_stick_figure(vectors, quaternions), expected,
    atol=1e-12)


def test_geoms_that_move_are_lines_along_their_longest_axis():
  pos = np.array([[7.0, 8.0, 0.5], [7.0, 8.0, 1.5]])
  rot = np.array([[1.0, 0, 0, 0], [1.0, 0, 0, 0]])
  lines = stick_figures.stick_figure_lines(_MODEL, pos, rot)
  assert lines.shape == (9, 2)  # Three geoms.
  assert np.isnan(lines[2::3]).all()
  # Seen from where the first link is; the sphere is a line along x.
  ends = lines.reshape(3, 3, 2)[:, :2]
  up, across = np.cos(0.3), 0.25 * np.cos(0.2)
  np.testing.assert_allclose(
    np.sort(ends[..., 1])[[0, 2]], up * np.array([[1.5, 5.5], [3.1, 3.9]]))
  np.testing.assert_allclose(ends[[0, 2], :, 0], 0, atol=1e-6)
  np.testing.assert_allclose(ends[1, :, 0], [-across, across], atol=1e-6)
  rot[0] = [0.5**0.5, 0, 0.5**0.5, 0]  # z becomes x.
  along = np.abs(
    np.diff(stick_figures.stick_figure_lines(_MODEL, pos, rot)[:2], axis=0))
  np.testing.assert_allclose(
    along[0], 4 * np.array([np.cos(0.2), np.sin(0.2) * np.sin(0.3)]), atol=1e-6)
