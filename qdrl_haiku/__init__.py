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

__version__ = "0.5.0.dev0"

_ROOMS = {
  "actors": "",
  "artifacts": "programs.",
  "config": "",
  "controllers": "",
  "distributed": "",
  "drawing": "programs.",
  "environments": "",
  "experiment": "programs.",
  "learners": "",
  "losses": "",
  "map_elites": "",
  "networks": "",
  "policies": "",
  "replay": "",
  "runs": "programs.",
  "skills": "",
  "specs": "",
  "training": "",
  "types": ""}
_EXPERIMENT_NAMES = ("Config", "read_config", "train")
__all__ = list(_ROOMS)

compatibility.check_compatibility()


def __getattr__(name: str) -> Any:
  """Imports a part when it is first used, so that `import` stays quick."""
  if name in _EXPERIMENT_NAMES:
    experiment = importlib.import_module(f"{__name__}.programs.experiment")
    return getattr(experiment, name)
  if name in _ROOMS:
    return importlib.import_module(f"{__name__}.{_ROOMS[name]}{name}")
  raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
  """Returns the names of what is imported late too, for completion."""
  return sorted([*globals(), *__all__, *_EXPERIMENT_NAMES])
