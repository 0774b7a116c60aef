"""Pictures: curves, skills, repertoires, episodes."""

import importlib
from types import ModuleType


def __getattr__(name: str) -> ModuleType:
  """Imports `heatmaps` when it is first used, since matplotlib takes long."""
  if name == "heatmaps":
    return importlib.import_module("qdrl_haiku.programs.drawing.heatmaps")
  raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
