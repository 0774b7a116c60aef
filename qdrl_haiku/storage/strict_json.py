"""JSON as its standard has it, without NaN and infinities."""

import json
import math
from typing import Any


def to_json(row: dict[str, Any]) -> str:
  """Returns one line of strict JSON."""
  return json.dumps(strict(row), allow_nan=False)


def strict(value: Any) -> Any:
  """Returns the same with None for what strict JSON has no number for."""
  if isinstance(value, dict):
    return {name: strict(x) for name, x in value.items()}
  if isinstance(value, float) and not math.isfinite(value):
    return None
  return value
