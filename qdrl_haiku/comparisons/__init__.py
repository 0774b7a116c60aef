"""Compares methods on tasks by seeds: plans runs, scores and shows them."""

from qdrl_haiku.comparisons.plan import (
  PlannedRun,
  plan_comparison,
  plan_comparison_metric,
)
from qdrl_haiku.comparisons.rendering import (
  render_comparison_markdown,
  render_comparison_picture,
)
from qdrl_haiku.comparisons.scores import (
  Curve,
  Settings,
  read_scored_curves,
  score_curves,
  score_table,
)
