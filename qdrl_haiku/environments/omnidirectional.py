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
  """Returns an environment that reports where the robot is.

  Args:
    env: one of brax's environments, of one instance.
    robot: which one, a key of `REWARD_OFFSETS`.

  Returns:
    The environment; its reward is what brax's is without the forward reward,
    which is still in `metrics`.
  """
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
  """Returns where a robot of brax is.

  Args:
    state: of one instance.

  Returns:
    [2], x and y of the torso, in metres.
  """
  return state.pipeline_state.x.pos[0, :2]


def _without_forward_reward(state: Any) -> Any:
  return state.replace(
    reward=state.reward - state.metrics["forward_reward"]
  )
