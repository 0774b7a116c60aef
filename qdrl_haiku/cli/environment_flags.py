"""The flags that choose and shape the environment, and what they make."""

import dataclasses
from typing import Any

from qdrl_haiku.cli.flags import Flags, flag


@dataclasses.dataclass(frozen=True, kw_only=True)
class EnvironmentFlags(Flags):
  """Name and shape the environment, and say how often it is evaluated in."""

  env_name: str = flag(
    "inverted_pendulum",
    "A brax environment, point_maze, playground:<name>, gymnasium:<id>, or "
    "package.module:function, returning an object with brax's reset and step.",
  )
  backend: str | None = flag(
    None, "brax's physics: generalized, spring, positional or mjx."
  )
  episode_length: int | None = flag(
    None, "Steps after which an episode is truncated."
  )
  maze_layout: str | None = flag(
    None, "Of point_maze: maze (the default) or open."
  )
  action_repeat: int = flag(1, "How often an action is applied.")
  num_eval_episodes: int | None = flag(
    None, "Episodes per evaluation; by default 8, or with skills 2 for each."
  )


def make_environment(
  flags: EnvironmentFlags, sizes: tuple[int, int] | None = None
) -> Any:
  """Returns the environment that the flags ask for.

  Args:
    flags: that ask for it.
    sizes: see `environments.create`.
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
    sizes=sizes,
    **arguments,
  )
