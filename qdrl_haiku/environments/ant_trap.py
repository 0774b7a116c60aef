"""The `ant_trap` environment: straight ahead leads into a dead end.

brax's ant, rewarded for going along x, starts in front of a wall in the shape
of a U, open towards it, as in QDax. Who only follows the reward is caught.
"""

import copy
import importlib.resources
from typing import Any
from xml.etree import ElementTree

import jax.numpy as jnp

from qdrl_haiku.environments import interface, omnidirectional, wrappers

_DESCRIPTOR = interface.Descriptor(
  names=("x", "y"), lower=(0.0, -8.0), upper=(30.0, 8.0), reward_offset=3.38
)
# Beams of 1 m that lie on the ground, from (x, y) to (x, y), in metres. The ant
# can't climb over them: it is stopped as unhealthy at a height of 1 m.
WALLS: dict[str, tuple[tuple[float, float], tuple[float, float]]] = {
  "trap_left": ((7.0, 3.0), (12.0, 3.0)),
  "trap_back": ((12.0, 3.0), (12.0, -3.0)),
  "trap_right": ((12.0, -3.0), (7.0, -3.0)),
}
WALL_RADIUS = 0.5
# In brax's ant only the feet collide, with the ground alone. What the walls are
# to stop is the torso and the legs below the ankles, which touch nothing else.
_STOPPED = (
  "torso_geom", "left_ankle_geom", "right_ankle_geom", "third_ankle_geom",
  "fourth_ankle_geom",
)
_WALL_BIT = "2"


def with_trap(env: Any) -> wrappers.Wrapper:
  """Returns brax's ant in front of the trap."""
  from brax.io import mjcf

  env = copy.copy(env)
  # brax's constructor has chosen the time step, the solver and the strength
  # of the motors for the backend.
  env.sys = mjcf.loads(_model()).replace(
    opt=env.sys.opt, actuator=env.sys.actuator
  )
  return wrappers.with_descriptor(
    wrappers.Wrapper(env, _with_position), omnidirectional.torso_position,
    _DESCRIPTOR,
  )


def _with_position(state: Any) -> Any:
  low, high = jnp.array([_DESCRIPTOR.lower, _DESCRIPTOR.upper])
  position = omnidirectional.torso_position(state)
  position = (2 * position - low - high) / (high - low)
  return state.replace(obs=jnp.concatenate([position, state.obs]))


def _model() -> str:
  """Returns brax's model of the ant with the walls."""
  assets = importlib.resources.files("brax") / "envs" / "assets"
  root = ElementTree.fromstring((assets / "ant.xml").read_text())
  geoms = {geom.get("name"): geom for geom in root.iter("geom")}
  for name in _STOPPED:
    geoms[name].set("contype", _WALL_BIT)
  world = root.find("worldbody")
  assert world is not None
  for name, ends in WALLS.items():
    ElementTree.SubElement(
      world, "geom", name=name, type="capsule", conaffinity=_WALL_BIT,
      size=str(WALL_RADIUS),
      fromto=" ".join(f"{x} {y} {WALL_RADIUS}" for x, y in ends),
    )
  return ElementTree.tostring(root, encoding="unicode")
