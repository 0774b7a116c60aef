"""A picture of what training costs, against the values of a flag."""

from collections.abc import Mapping, Sequence

from matplotlib import figure as matplotlib_figure

from qdrl_haiku.drawing import with_matplotlib
from qdrl_haiku.drawing.figure import Axis, Figure, Panel, Trace

# Of each column: its label, and the cost of a number in it.
_COSTS = {
  "env_steps_per_second": ("µs per environment step", lambda x: 1e6 / x),
  "updates_per_second": ("µs per update", lambda x: 1e6 / x),
  "generation_seconds": ("s per generation", lambda x: x),
  "exploit_milliseconds": ("ms per decision and its copies", lambda x: x),
  "time_to_first_update_seconds": ("s to the first update", lambda x: x),
}


def draw_costs(
  rows: Sequence[Mapping[str, float]], name: str
) -> matplotlib_figure.Figure:
  """Draws the costs that all rows tell, each in a panel.

  Args:
    rows: as `launchers/benchmark.py` prints them, one per value.
    name: of the flag, whose values the rows hold.

  Returns:
    The figure.
  """
  columns = [column for column in _COSTS if all(column in row for row in rows)]
  values = [str(row[name]) for row in rows]
  panels = []
  for column in columns:
    label, cost = _COSTS[column]
    numbers = [cost(row[column]) for row in rows]
    panels.append(
      Panel(
        "",
        [Trace(values, numbers, in_legend=False, sizes=8)],
        Axis(name),
        Axis(label, range=(0, 1.05 * max(numbers))),
      )
    )
  return with_matplotlib.draw_with_matplotlib(
    Figure(panels, 300, columns=len(panels))
  )
