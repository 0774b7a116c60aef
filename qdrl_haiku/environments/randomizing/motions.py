"""Pushes robots at random times, and draws poses at the start."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from qdrl_haiku.environments.interface import State
from qdrl_haiku.environments.randomizing import factors
from qdrl_haiku.types import Array, Key

MOTIONS = ("initial_pose", "push", "push_interval")
# Seconds from one push to the next, in the mean.
_INTERVAL = 5.0


class Motions:
  """Pushes a robot and turns its joints at the start, by what is drawn."""

  def __init__(self, env: Any, drawn: Mapping[str, object]) -> None:
    """Finds what can be moved; see `randomizing.randomized`."""
    self._poses: dict[str, np.ndarray] = {}
    if not drawn:
      return
    _, self._model = factors.system_of(env)
    self._dt = float(getattr(env, "dt", 0.0))
    for name in drawn:
      if name.partition("/")[0] == "initial_pose":
        self._poses[name] = self._joints(env, name)
    if "push_interval" in drawn and "push" not in drawn:
      raise ValueError(
        "randomize='push_interval' has no effect without a push; give "
        "'push:uniform:0:1', in m/s, as well.")
    if "push" in drawn:
      self._across = self._sideways(env)

  def _joints(self, env: Any, name: str) -> np.ndarray:
    """Returns which of q [Q] are hinges and slides of a name."""
    if _first_pose(env) is None:
      raise ValueError(
        f"randomize={name!r} has no effect: {type(env).__name__} has neither "
        "sys.init_q nor _init_q, where episodes begin; leave it out.")
    model = self._model
    is_joint = factors.chosen(model, name, "joint") & (model.jnt_type >= 2)
    if not is_joint.any():
      raise ValueError(
        f"randomize={name!r} has no effect: there is no hinge and no slide; "
        "leave it out.")
    found = np.zeros(model.nq, bool)
    found[model.jnt_qposadr[is_joint]] = True
    return found

  def _sideways(self, env: Any) -> dict[int, np.ndarray]:
    """Returns the root's degrees of freedom that go sideways, with axes [3]."""
    model = self._model
    found: dict[int, np.ndarray] = {}
    for i in np.flatnonzero(model.jnt_bodyid == model.jnt_bodyid[0]):
      dof, axis = model.jnt_dofadr[i], model.jnt_axis[i]
      if model.jnt_type[i] == 0:
        found |= {dof: np.eye(3)[0], dof + 1: np.eye(3)[1]}
      elif model.jnt_type[i] == 2 and abs(axis[2]) < 0.5:
        found[dof] = axis
    if not found or not self._dt:
      raise ValueError(
        f"randomize='push' has no effect: the root of {type(env).__name__} "
        "neither floats nor slides sideways; leave it out.")
    return found

  def posed(self, env: Any, values: Mapping[str, Array], key: Key) -> Any:
    """Returns an `env` whose episodes begin in another pose.

    `values` [] by name say how far joints may be from it; `key` is consumed.
    """
    if not self._poses:
      return env
    model, first = self._model, jnp.asarray(_first_pose(env))
    moved = sum(
      (values[name] * mask for name, mask in self._poses.items()),
      jnp.zeros(model.nq))
    moved *= jax.random.uniform(key, (model.nq,), minval=-1.0)
    low, high = np.full((2, model.nq), [[-np.inf], [np.inf]])
    limited = (model.jnt_limited != 0) & (model.jnt_type >= 2)
    places = model.jnt_qposadr[limited]
    low[places], high[places] = model.jnt_range[limited].T
    # Where the robot's own pose is outside of them, it may stay.
    pose = jnp.clip(
      first + moved, jnp.minimum(low, first), jnp.maximum(high, first))
    pose = pose.astype(first.dtype)
    if hasattr(env, "sys"):
      return factors.replaced(env, sys=env.sys.replace(init_q=pose))
    return factors.replaced(env, _init_q=pose)

  def pushed(
    self, state: State, values: Mapping[str, Array], key: Key
  ) -> State:
    """Adds a velocity to the root of a `state`, in a random direction.

    It is added at random times, drawn by `key`, as the `values` [] by name say.
    """
    if "push" not in values:
      return state
    is_now, turn = jax.random.uniform(key, (2,))
    rate = self._dt / values.get("push_interval", jnp.float32(_INTERVAL))
    speed = jnp.where(is_now < rate, values["push"], 0.0)
    angle = 2 * jnp.pi * turn
    if len(self._across) == 1:  # There, or back.
      angle = jnp.pi * (turn < 0.5)
    push = [speed * jnp.cos(angle), speed * jnp.sin(angle)]
    name = "pipeline_state" if hasattr(state, "pipeline_state") else "data"
    physics = getattr(state, name)
    changed: dict[str, Any] = {}
    for field in ("qd", "qvel"):
      if (x := getattr(physics, field, None)) is not None:
        for dof, part in zip(self._across, push, strict=False):
          x = x.at[dof].add(part.astype(x.dtype))
        changed[field] = x
    if (x := getattr(physics, "xd_i", None)) is not None:
      # brax's own two keep the velocities of links, which leave out the world.
      model = self._model
      is_part = model.body_rootid == model.body_rootid[model.jnt_bodyid[0]]
      along = sum(
        part * axis
        for part, axis in zip(push, self._across.values(), strict=False))
      changed["xd_i"] = x.replace(vel=x.vel + is_part[1:, None] * along)
    return state.replace(**{name: physics.replace(**changed)})


def _first_pose(env: Any) -> Any:
  """Returns q [Q] where episodes begin, or None."""
  if (sys := getattr(env, "sys", None)) is not None:
    return sys.init_q
  return getattr(env, "_init_q", None)
