"""Environments: batches of them, their registry, and our own."""

from qdrl_haiku.environments.base import Environment
from qdrl_haiku.environments.interface import Descriptor, State
from qdrl_haiku.environments.point_maze import PointMaze
from qdrl_haiku.environments.registry import create, names

__all__ = [
  "Descriptor", "Environment", "PointMaze", "State", "create", "names",
]
