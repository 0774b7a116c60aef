"""Population-based and quality-diversity reinforcement learning in JAX.

A researcher starts a launcher, or calls `qdrl_haiku.train`; an engineer
composes learners, actors and controllers; an author tests one loss. Each part
can be used alone, and its docstring says what it is for:

  import qdrl_haiku as qd
  learner = qd.learners.sac(observation_size=3, action_size=1)
"""

import importlib
from typing import Any

from qdrl_haiku import compatibility

__version__ = "0.4.0"

_ROOMS = (
  "actors",
  "artifacts",
  "config",
  "controllers",
  "distributed",
  "drawing",
  "environments",
  "experiment",
  "learners",
  "losses",
  "map_elites",
  "networks",
  "policies",
  "replay",
  "runs",
  "skills",
  "training",
  "types")
_OF_EXPERIMENT = ("Config", "read_config", "train")
__all__ = list(_ROOMS)

compatibility.check_compatibility()


def __getattr__(name: str) -> Any:
  """Imports a part when it is first used, so that `import` stays quick."""
  if name in _OF_EXPERIMENT:
    return getattr(importlib.import_module("qdrl_haiku.experiment"), name)
  if name in _ROOMS:
    return importlib.import_module(f"qdrl_haiku.{name}")
  raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
  """Returns the names of what is imported late too, for completion."""
  return sorted([*globals(), *__all__, *_OF_EXPERIMENT])
