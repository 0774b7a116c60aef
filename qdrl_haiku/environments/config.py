"""The settings of an environment."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from qdrl_haiku.config import Missing, Settings, setting
from qdrl_haiku.environments import registry


@dataclasses.dataclass(frozen=True)
class EnvironmentConfig(Settings):
  """Names and shapes an environment; see `create`."""

  title = "Environment"

  env_name: str = setting(
    "inverted_pendulum",
    "A brax environment, point_maze, playground:<name>, gymnasium:<id>, or "
    "package.module:function, which returns an object with brax's reset and "
    "step.",
  )
  backend: str | None = setting(
    None, "Physics of brax: generalized, spring, positional or mjx."
  )
  episode_length: int | None = setting(
    None,
    "Steps after which an episode is truncated; by default the environment's "
    "own number.",
    low=1,
    high=2**30 - 1,
  )
  action_repeat: int = setting(
    1,
    "How many steps of the environment each action lasts.",
    low=1,
    offered=False,
  )
  maze_layout: str | None = setting(
    None, "Walls of point_maze: maze (the default) or open.", needs="maze"
  )

  def missing(self) -> Mapping[str, Missing]:
    """Returns the parts that the configuration lacks, by name."""
    if self.env_name == "point_maze":
      return {}
    why = f"--env_name={self.env_name} has no layout"
    return {"maze": Missing(why, ("env_name",))}

  @property
  def is_on_host(self) -> bool:
    """Whether jax doesn't hold the states of the environment."""
    return self.env_name.startswith("gymnasium:")

  def make(self, sizes: tuple[int, int] | None = None) -> Any:
    """Makes the environment.

    Args:
      sizes: see `create`.

    Returns:
      The environment, of any number of instances.

    Raises:
      ValueError: see `create`.
    """
    layout: dict[str, Any] = {}
    if self.env_name == "point_maze":
      layout["layout"] = self.maze_layout or "maze"
    return registry.create(
      self.env_name,
      backend=self.backend or None,
      episode_length=self.episode_length,
      action_repeat=self.action_repeat,
      sizes=sizes,
      **layout,
    )
