"""The `<robot>_uni` environments: walk forwards, told apart by the feet used.

An episode's descriptor is the share of time that each foot touches the ground
(Cully et al., "Robots that can adapt like animals", Nature 2015).
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp

from qdrl_haiku import types
from qdrl_haiku.environments import descriptors, interface, wrappers

# A foot stands at some small distance: brax's spring and positional physics
# push only what penetrates, so that a foot at rest trembles around the ground,
# by up to 0.4 mm above it. With 1 mm a robot at rest reads 1, and one mm is
# little next to feet of 46 to 80 mm radius.
_TOUCH_DISTANCE = 1e-3


class _Robot(NamedTuple):
  """A robot of brax.

  Attributes:
    feet: the geom of each foot, by the name that the foot has with us.
    reward_offset: see `interface.Descriptor`.
  """

  feet: dict[str, str]
  reward_offset: float


# The offsets are those that the field uses (QDax). The ant can fall below its
# own, to about -4.3 a step with motors at full power all the time.
ROBOTS: dict[str, _Robot] = {
  # The ant walks along x, which its own names for its legs do not agree with.
  "ant": _Robot(
    {
      "front_left_foot": "left_foot_geom",
      "back_left_foot": "right_foot_geom",
      "back_right_foot": "third_foot_geom",
      "front_right_foot": "fourth_foot_geom",
    },
    reward_offset=3.24,
  ),
  "halfcheetah": _Robot(
    {"back_foot": "bfoot", "front_foot": "ffoot"}, reward_offset=9.231
  ),
  "hopper": _Robot({"foot": "foot_geom"}, reward_offset=0.9),
  "humanoid": _Robot(
    {"left_foot": "left_foot", "right_foot": "right_foot"}, reward_offset=0.0
  ),
  "walker2d": _Robot(
    {"left_foot": "foot_left_geom", "right_foot": "foot_geom"},
    reward_offset=1.413,
  ),
}


def with_feet_contact(env: Any, robot: str) -> wrappers.Wrapper:
  """Returns an environment that reports which feet touch the ground."""
  feet, reward_offset = ROBOTS[robot]
  return wrappers.with_descriptor(
    env,
    ground_contact(env.sys, list(feet.values())),
    interface.Descriptor(
      names=tuple(feet),
      lower=(0.0,) * len(feet),
      upper=(1.0,) * len(feet),
      function=descriptors.mean_descriptor,
      reward_offset=reward_offset,
    ),
  )


def ground_contact(
  sys: Any, geoms: Sequence[str]
) -> wrappers.StateDescriptorFn:
  """Returns a function that tells which parts of a robot touch the ground.

  The contacts are those that the physics finds, in any backend. They are
  looked for once per step, in the state that it ends in: in brax, `debug=True`
  would do so in each of its substeps.
  """
  from brax import contact

  model = sys.mj_model
  floor = model.geom("floor").id
  parts = jnp.array([model.geom(name).id for name in geoms])[:, None]

  def touching(state: Any) -> types.Array:
    found = contact.get(sys, state.pipeline_state.x)
    pair = jnp.stack([found.geom1, found.geom2])
    is_parts = (pair[0] == floor) & (pair[1] == parts) | (
      (pair[1] == floor) & (pair[0] == parts)
    )
    touches = is_parts & (found.dist < _TOUCH_DISTANCE)
    return touches.any(axis=1).astype(jnp.float32)

  return touching
