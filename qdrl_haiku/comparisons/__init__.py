"""Compares methods on tasks by seeds: plans runs, scores and shows them."""

from qdrl_haiku.comparisons.plan import PlannedRun, common_metric, plan
from qdrl_haiku.comparisons.rendering import markdown, picture
from qdrl_haiku.comparisons.scores import Curve, Settings, read, scores, table

__all__ = [
  "Curve",
  "PlannedRun",
  "Settings",
  "common_metric",
  "markdown",
  "picture",
  "plan",
  "read",
  "scores",
  "table",
]
