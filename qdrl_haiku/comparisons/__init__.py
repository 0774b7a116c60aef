"""Comparisons: methods on tasks by seeds, and what comes of them."""

from qdrl_haiku.comparisons.pictures import picture
from qdrl_haiku.comparisons.results import (
  Line,
  Settings,
  json_rows,
  lines,
  markdown,
  score,
)
from qdrl_haiku.comparisons.scores import Curve, read
from qdrl_haiku.comparisons.table import METRICS, Row, metric, rows

__all__ = [
  "METRICS",
  "Curve",
  "Line",
  "Row",
  "Settings",
  "json_rows",
  "lines",
  "markdown",
  "metric",
  "picture",
  "read",
  "rows",
  "score",
]
