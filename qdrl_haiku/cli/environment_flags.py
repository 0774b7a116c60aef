"""The flags that choose and shape the environment, and what they make."""

import dataclasses
from collections.abc import Callable
from typing import Any

from qdrl_haiku.cli.flags import Flags, flag


@dataclasses.dataclass(frozen=True, kw_only=True)
class EnvironmentFlags(Flags):
  """Name and shape the environment, and say how often it is evaluated in."""

  section = "Environment"

  env_name: str = flag(
    "inverted_pendulum",
    "Environment: a name of brax, point_maze, playground:<name>, "
    "gymnasium:<id>, or package.module:function, a function that returns an "
    "object with brax's reset and step.",
  )
  backend: str | None = flag(
    None,
    "Physics of a brax environment: generalized, spring, positional or mjx; by "
    "default the one that is set for the robot.",
  )
  episode_length: int | None = flag(
    None,
    "Environment steps after which an episode is truncated; by default the "
    "environment's own number.",
  )
  maze_layout: str | None = flag(
    None, "Walls of point_maze: maze (the default) or open."
  )
  action_repeat: int = flag(
    1, "Steps of physics for which each action is repeated."
  )
  num_eval_episodes: int | None = flag(
    None,
    "Episodes per agent in each evaluation; by default 8, or with DIAYN 2 for "
    "each discrete skill and 64 with continuous ones.",
    section="Evaluation",
  )


def make_environment(
  flags: EnvironmentFlags,
  sizes_of: Callable[[Any], tuple[int, int] | None] | None = None,
) -> Any:
  """Returns the environment that the flags ask for.

  Args:
    flags: that ask for it.
    sizes_of: see `environments.create`.
  """
  from qdrl_haiku import environments

  arguments = {}
  if flags.env_name == "point_maze":
    arguments["layout"] = flags.maze_layout or "maze"
  else:
    flags.refuse_given(
      ["maze_layout"], f"--env_name={flags.env_name} has no layout"
    )
  return environments.create(
    flags.env_name,
    backend=flags.backend or None,
    episode_length=flags.episode_length,
    action_repeat=flags.action_repeat,
    sizes_of=sizes_of,
    **arguments,
  )
