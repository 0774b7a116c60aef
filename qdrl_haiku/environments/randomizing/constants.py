"""Derives from a robot's inertia what MuJoCo does when it reads it.

Contacts, limits and equalities are as stiff as inverse weights say. Where only
masses change, a robot ten times as heavy sinks into the floor.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from qdrl_haiku.types import Array

_MUSCLE = 2


def derive_constants(model: Any) -> Callable[..., dict[str, Array]]:
  """Makes a function that derives constants from inertia as `mj_setConst` does.

  With L L^T the mass matrix in MuJoCo's `qpos0`, M_i what body i adds to it,
  and S_i = L^-1 M_i L^-T, factors f_i of masses and inertias turn the matrix
  into L (1 - sum_i S_i + sum_i f_i S_i) L^T. What stands between is conditioned
  no worse than the factors differ, so float32 is enough for any robot. Centres
  that move change S_i, and armature A adds L^-1 A L^-T.

  Returns:
    The function from factors of all bodies' masses, [N], how far their centres
    move in their own frames, [N, 3], or None, and the armature that is added,
    [V], or None, to the fields of MuJoCo's model that MJX reads and that depend
    on them.
  """
  import mujoco

  data = mujoco.MjData(model)
  mujoco.mj_fwdPosition(model, data)  # In `qpos0`.
  num_bodies, num_dofs = model.nbody, model.nv
  matrix = np.zeros((num_dofs, num_dofs))
  mujoco.mj_fullM(model, data, matrix)
  whiten = np.linalg.inv(np.linalg.cholesky(matrix)).T
  # Of the bodies' centres, along and around the three axes: [N, 2, 3, V].
  jacobians = np.zeros((num_bodies, 2, 3, num_dofs))
  for i, (along, around) in enumerate(jacobians):
    mujoco.mj_jacBodyCom(model, data, along, around, i)
  bodies = jacobians @ whiten
  around = data.ximat.reshape(-1, 3, 3).mT @ bodies[:, 1]
  turning = np.einsum("nk,nki,nkj->nij", model.body_inertia, around, around)
  parts = np.einsum("n,nki,nkj->nij", model.body_mass, *[bodies[:, 0]] * 2)
  parts += turning
  others = _float32(np.eye(num_dofs) - parts.sum(axis=0))  # Motors' armature.
  parts = _float32(parts)
  tendons, actuators = (
    np.zeros((number, num_dofs)) for number in (model.ntendon, model.nu))
  mujoco.mju_sparse2dense(
    tendons, data.ten_J, model.ten_J_rownnz, model.ten_J_rowadr,
    model.ten_J_colind)
  mujoco.mju_sparse2dense(
    actuators, data.actuator_moment, data.moment_rownnz, data.moment_rowadr,
    data.moment_colind)
  bodies, turning = _float32(bodies), _float32(turning)
  frames = _float32(data.xmat.reshape(-1, 3, 3))
  others_rows = _float32(np.concatenate([whiten, tendons @ whiten]))
  # A joint's directions share their mean; a free one's are three and three.
  offset = np.arange(num_dofs) - model.jnt_dofadr[model.dof_jntid]
  joint = 2 * model.dof_jntid + offset // 3
  shared = _float32(joint[:, None] == joint)
  shared /= shared.sum(axis=1)
  # MuJoCo doesn't ask the matrix about bodies that only slide along axes.
  slides = model.body_simple == 2
  is_below = np.eye(num_bodies, dtype=np.float32)
  for i in range(num_bodies - 1, 0, -1):
    is_below[model.body_parentid[i]] += is_below[i]

  def derive(
    factors: Array, moved: Array | None = None, armature: Array | None = None
  ) -> dict[str, Array]:
    mass = factors * _float32(model.body_mass)
    motion, added = jnp.asarray(bodies), jnp.asarray(parts)
    if moved is not None:
      # Sums, since products of matrices are coarser on some devices.
      arms = jnp.sum(frames * moved[:, None, :], axis=-1)
      along = bodies[:, 0] + jnp.cross(bodies[:, 1], arms[:, :, None], axis=1)
      motion = jnp.stack([along, bodies[:, 1]], axis=1)
      added = turning + _float32(model.body_mass)[:, None, None] * jnp.sum(
        along[:, :, :, None] * along[:, :, None, :], axis=1)
    matrix = others + jnp.sum(factors[:, None, None] * added, axis=0)
    if armature is not None:
      each = _float32(whiten)
      matrix += jnp.sum(
        armature[:, None, None] * each[:, :, None] * each[:, None, :], axis=0)
    rows = jnp.concatenate([motion.reshape(-1, num_dofs), others_rows])
    lower = jnp.linalg.cholesky(matrix)
    solve = jax.scipy.linalg.solve_triangular
    inverse = jnp.sum(jnp.square(solve(lower, rows.T, lower=True)), axis=0)
    of_bodies, of_dofs, of_tendons = jnp.split(
      inverse, [6 * num_bodies, 6 * num_bodies + num_dofs])
    of_bodies = of_bodies.reshape(num_bodies, 2, 3).mean(axis=-1)
    sliding = 1 / jnp.where(slides, mass, 1)
    found = {
      "body_invweight0": jnp.where(
        slides[:, None], jnp.stack([sliding, 0 * sliding], 1), of_bodies),
      "body_subtreemass": jnp.sum(is_below * mass, axis=1),
      "dof_invweight0": jnp.where(
        slides[model.dof_bodyid], sliding[model.dof_bodyid],
        jnp.sum(shared * of_dofs, axis=1)),
      "tendon_invweight0": of_tendons}
    if (model.actuator_gaintype == _MUSCLE).any():
      force = jax.scipy.linalg.cho_solve(
        (lower, True), _float32(actuators @ whiten).T)
      forces = _float32(whiten)[:, :, None] * force
      found["actuator_acc0"] = jnp.linalg.norm(jnp.sum(forces, axis=1), axis=0)
    return found

  return derive


def _float32(x: np.ndarray) -> np.ndarray:
  """Returns numbers in the precision of MJX."""
  return np.asarray(x, np.float32)
