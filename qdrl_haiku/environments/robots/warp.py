"""MuJoCo Warp's physics of a robot: MuJoCo's, by kernels for NVIDIA's cards.

Warp's states share their contacts, so that no instance could be reset or copied
alone. Here a state is what belongs to one instance alone; the rest is made anew
in each call, for as many instances as that has.
"""

import dataclasses
from typing import TYPE_CHECKING, Any, Self

import jax
import jax.numpy as jnp

from qdrl_haiku import names
from qdrl_haiku.types import Array, Tree

if TYPE_CHECKING:
  from brax.base import Motion, Transform

# What a step of the physics goes on from.
_CARRIED = ("time", "qpos", "qvel", "act", "qacc_warmstart")


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class WarpState:
  """Holds the physics of one robot, with the names of brax's."""

  q: Array  # [Q], generalized positions.
  qd: Array  # [V], generalized velocities.
  act: Array  # The actuators' states.
  time: Array  # [], in seconds.
  qacc_warmstart: Array  # [V], from which the solver begins.
  x: "Transform"  # Of the bodies but the world.
  xd: "Motion"  # Theirs.
  sensordata: Array  # What the sensors measure.

  def replace(self, **changes: Any) -> Self:
    """Returns a copy with some fields changed."""
    return dataclasses.replace(self, **changes)


class WarpPhysics:
  """Simulates a robot by MuJoCo Warp."""

  def __init__(self, sys: Any) -> None:
    """Compiles a robot.

    Args:
      sys: brax's system, with MuJoCo's model in `sys.mj_model`.

    Raises:
      ValueError: if Warp isn't installed, or can't simulate the robot.
    """
    prepare_warp()
    from mujoco import mjx

    self._sys = sys
    try:
      self._model = mjx.put_model(sys.mj_model, impl="warp")
    except NotImplementedError as error:
      raise ValueError(
        f"backend='warp' can't simulate this robot ({error}); give "
        "mjx.") from error
    # Of one robot: how many contacts and constraints there is room for.
    self._first = mjx.make_data(sys.mj_model, impl="warp")

  def init(
    self, sys: Any, q: Array, qd: Array, act: Array | None = None
  ) -> WarpState:
    """Returns the state in which a robot begins.

    Args:
      sys: the robot's system, of which fields may have changed.
      q: [Q], generalized positions.
      qd: [V], generalized velocities.
      act: the actuators' states; by default MuJoCo's first ones.
    """
    first = {name: getattr(self._first, name) for name in _CARRIED}
    first |= {"qpos": q, "qvel": qd}
    if act is not None:
      first["act"] = act
    return self._advanced(sys, first, self._first.ctrl, 0)

  def advance(
    self, sys: Any, state: WarpState, control: Array, num_steps: int
  ) -> WarpState:
    """Returns the state some time steps later.

    Its places, speeds and sensors are those of its `q` and `qd`.

    Args:
      sys: the robot's system, of which fields may have changed.
      state: of one robot.
      control: of its actuators, [A].
      num_steps: how many time steps, >= 0.
    """
    first = {
      "time": state.time, "qpos": state.q, "qvel": state.qd, "act": state.act,
      "qacc_warmstart": state.qacc_warmstart}
    return self._advanced(sys, first, control, num_steps)

  def _advanced(
    self, sys: Any, first: dict[str, Array], control: Array, num_steps: int
  ) -> WarpState:
    """Simulates one robot, or in `jax.vmap` all of them at once."""
    from brax import base

    @jax.custom_batching.custom_vmap
    def alone(*args: Tree) -> dict[str, Array]:
      args = jax.tree.map(lambda x: jnp.asarray(x)[None], args)
      return jax.tree.map(
        lambda x: x[0], self._batch(1, num_steps, *args))

    @alone.def_vmap
    def _together(size: int, is_batched: list[Tree], *args: Tree) -> Tree:
      args = jax.tree.map(
        lambda x, has: x if has else jnp.broadcast_to(x, (size, *jnp.shape(x))),
        args, tuple(is_batched))
      found = self._batch(size, num_steps, *args)
      return found, jax.tree.map(lambda _: True, found)

    found = alone(_changed_fields(self._sys, sys), first, control)
    place = base.Transform(pos=found["xpos"][1:], rot=found["xquat"][1:])
    centre = found["subtree_com"][jnp.asarray(sys.body_rootid)[1:]]
    motion = base.Transform.create(pos=place.pos - centre).vmap().do(
      base.Motion(vel=found["cvel"][1:, 3:], ang=found["cvel"][1:, :3]))
    return WarpState(
      found["qpos"], found["qvel"], found["act"], found["time"],
      found["qacc_warmstart"], place, motion, found["sensordata"])

  def _batch(
    self, size: int, num_steps: int, changes: dict[str, Array],
    first: dict[str, Array], control: Array,
  ) -> dict[str, Array]:
    """Simulates so many robots, leaves [size, ...]."""
    from mujoco import mjx

    room = self._first._impl
    shared = mjx.make_data(
      self._sys.mj_model, impl="warp", naconmax=size * room.naconmax,
      njmax=room.njmax)

    def one(
      changes: dict[str, Array], first: dict[str, Array], control: Array
    ) -> dict[str, Array]:
      model = self._model.tree_replace(changes) if changes else self._model
      data = shared.replace(**first, ctrl=control)
      data, _ = jax.lax.scan(
        lambda x, _: (mjx.step(model, x), None), data, length=num_steps)
      carried = {name: getattr(data, name) for name in _CARRIED}
      # A step ends with the places and sensors of before.
      data = mjx.forward(model, data)
      told = ("xpos", "xquat", "subtree_com", "cvel", "sensordata")
      return carried | {name: getattr(data, name) for name in told}

    return jax.vmap(one)(changes, first, control)


def _changed_fields(before: Any, after: Any) -> dict[str, Array]:
  """Returns those of MJX's fields that differ between systems, by name."""
  from mujoco import mjx

  fields = {x.name for x in dataclasses.fields(mjx.Model)}
  found = {
    name: value for name in fields - {"opt", "stat", "_impl"}
    if (value := getattr(after, name)) is not getattr(before, name)}
  if after.opt.gravity is not before.opt.gravity:
    found["opt.gravity"] = after.opt.gravity
  return found


def prepare_warp() -> None:
  """Keeps Warp quiet, which prints a line for each kernel.

  Raises:
    ValueError: if it isn't installed.
  """
  warp = names.import_extra("backend='warp'", "warp", "MuJoCo Warp")
  warp.config.log_level = warp.LOG_WARNING
