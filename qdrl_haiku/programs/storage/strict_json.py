"""JSON as its standard has it, without NaN and infinities."""

import json
import math
from collections.abc import Iterable

from qdrl_haiku.types import Record, Tree


def to_strict_json(row: Record) -> str:
  """Returns one line of strict JSON."""
  return json.dumps(strict_json_value(row), allow_nan=False)


def to_strict_json_lines(rows: Iterable[Record]) -> str:
  """Returns a line of strict JSON per row, each with its line break."""
  return "".join(to_strict_json(row) + "\n" for row in rows)


def strict_json_value(value: Tree) -> Tree:
  """Returns a value with None for each float that isn't finite."""
  if isinstance(value, dict):
    return {name: strict_json_value(x) for name, x in value.items()}
  if isinstance(value, list | tuple):
    return [strict_json_value(x) for x in value]
  if isinstance(value, float) and not math.isfinite(value):
    return None
  return value
