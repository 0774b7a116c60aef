"""One's own robots: from a file and a task to an environment."""

from qdrl_haiku.environments.robots.environment import Robot, from_mjcf
from qdrl_haiku.environments.robots.model import BACKENDS, RobotModel
from qdrl_haiku.environments.robots.observed import Observed
from qdrl_haiku.environments.robots.tasks import (
  TASKS,
  RobotState,
  Task,
  reach,
  run,
  stand,
)
