"""Environments: batches of them, their registry, and our own."""

from qdrl_haiku.environments.environment import Environment
from qdrl_haiku.environments.interface import (
  BOUNDARY_SHARE,
  CURRICULUM,
  TUNABLE,
  Abilities,
  BatchedEnvironment,
  Descriptor,
  DescriptorFn,
  Objectives,
  State,
  final_descriptor,
  mean_descriptor,
)
from qdrl_haiku.environments.point_maze import PointMaze
from qdrl_haiku.environments.registry import (
  EnvironmentConfig,
  create,
  registered_environments,
)
from qdrl_haiku.environments.robots import (
  Observed,
  RobotModel,
  RobotState,
  Task,
  from_mjcf,
)
from qdrl_haiku.environments.scenes import (
  PlaneScene,
  RobotScene,
  Scene,
  one_instance,
  policy_interface,
  robot_position,
  scene,
)
from qdrl_haiku.environments.skill_environment import SkillEnvironment
from qdrl_haiku.environments.suites.gymnasium_environment import (
  GymnasiumEnvironment,
)
from qdrl_haiku.environments.wrappers import with_descriptor
from qdrl_haiku.hyperparameter import Hyperparameter
