"""The `<robot>_omni` environments: go anywhere, told apart by where to.

Going forwards is not rewarded, staying upright with little effort is. An
episode's descriptor is the position in which it ends.
"""

from typing import Any

from qdrl_haiku import types
from qdrl_haiku.environments import interface, wrappers

# The offsets and the bounds, in metres, are those that the field uses (QDax).
REWARD_OFFSETS: dict[str, float] = {"ant": 3.0, "humanoid": 0.0}
_BOUND = 30.0


def with_any_direction(env: Any, robot: str) -> wrappers.Wrapper:
  """Returns an environment that reports where the robot is."""
  return wrappers.with_descriptor(
    wrappers.Wrapper(env, _without_forward_reward),
    torso_position,
    interface.Descriptor(
      names=("x", "y"),
      lower=(-_BOUND, -_BOUND),
      upper=(_BOUND, _BOUND),
      reward_offset=REWARD_OFFSETS[robot],
    ),
  )


def torso_position(state: Any) -> types.Array:
  """Returns where a robot of brax is."""
  return state.pipeline_state.x.pos[0, :2]


def _without_forward_reward(state: Any) -> Any:
  return state.replace(
    reward=state.reward - state.metrics["forward_reward"]
  )
