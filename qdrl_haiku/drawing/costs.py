"""A picture of what training costs, against the values of a flag."""

from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure

# What of a row is drawn: its label, and what to make of the number.
_COSTS = {
  "env_steps_per_second": ("µs per environment step", lambda x: 1e6 / x),
  "updates_per_second": ("µs per update", lambda x: 1e6 / x),
  "generation_seconds": ("s per generation", lambda x: x),
  "exploit_milliseconds": ("ms per decision and its copies", lambda x: x),
  "time_to_first_update_seconds": ("s to the first update", lambda x: x),
}


def costs(rows: Sequence[dict[str, Any]], name: str) -> Figure:
  """Draws the costs that all rows tell, each in a panel, from 0 on.

  Args:
    rows: as `launchers/benchmark.py` prints them, one per value.
    name: of the flag, whose values the rows hold.

  Returns:
    The figure.
  """
  columns = [column for column in _COSTS if all(column in row for row in rows)]
  figure = Figure(figsize=(3.6 * len(columns), 3.4), layout="constrained")
  panels = figure.subplots(1, len(columns), squeeze=False)[0]
  values = [str(row[name]) for row in rows]
  for axes, column in zip(panels, columns, strict=True):
    label, cost = _COSTS[column]
    axes.plot(values, [cost(row[column]) for row in rows], marker="o")
    axes.set(xlabel=name, ylabel=label)
    axes.set_ylim(bottom=0)
  return figure
