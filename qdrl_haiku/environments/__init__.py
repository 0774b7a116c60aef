"""Environments: batches of them, their registry, and our own."""

from qdrl_haiku.environments.base import Environment
from qdrl_haiku.environments.config import EnvironmentConfig
from qdrl_haiku.environments.descriptors import (
  DescriptorFn,
  final_descriptor,
  mean_descriptor,
)
from qdrl_haiku.environments.gymnasium_vector import GymnasiumEnvironment
from qdrl_haiku.environments.interface import (
  BatchedEnvironment,
  Descriptor,
  State,
)
from qdrl_haiku.environments.point_maze import PointMaze
from qdrl_haiku.environments.registry import create, names
from qdrl_haiku.environments.scenes import PlaneScene, RobotScene, Scene, scene
from qdrl_haiku.environments.skill_environment import SkillEnvironment
from qdrl_haiku.environments.wrappers import with_descriptor

__all__ = [
  "BatchedEnvironment",
  "Descriptor",
  "DescriptorFn",
  "Environment",
  "EnvironmentConfig",
  "GymnasiumEnvironment",
  "PlaneScene",
  "PointMaze",
  "RobotScene",
  "Scene",
  "SkillEnvironment",
  "State",
  "create",
  "final_descriptor",
  "mean_descriptor",
  "names",
  "scene",
  "with_descriptor",
]
