"""A picture of what training costs, against the values of a flag."""

from collections.abc import Mapping, Sequence

from matplotlib import figure as matplotlib_figure

from qdrl_haiku.programs.drawing import with_matplotlib
from qdrl_haiku.programs.drawing.figure import Axis, Figure, Panel, Trace

# Of each column: its label, and the cost of a number in it.
_COSTS = {
  "env_steps_per_second": ("µs per environment step", lambda x: 1e6 / x),
  "updates_per_second": ("µs per update", lambda x: 1e6 / x),
  "generation_seconds": ("s per generation", lambda x: x),
  "exploit_milliseconds": ("ms per decision and its copies", lambda x: x),
  "time_to_first_update_seconds": ("s to the first update", lambda x: x)}


def draw_costs(
  rows: Sequence[Mapping[str, float]], name: str
) -> matplotlib_figure.Figure:
  """Draws the costs that all rows tell, none of them 0, each in a panel.

  The rows are those of `launchers/benchmark.py`, one per value of a flag.
  """
  values, panels = [str(row[name]) for row in rows], []
  for column, (label, cost) in _COSTS.items():
    if all(row.get(column) for row in rows):
      numbers = [cost(row[column]) for row in rows]
      trace = Trace(values, numbers, in_legend=False, sizes=8)
      y = Axis(label, range=(0, 1.05 * max(numbers)))
      panels.append(Panel("", [trace], Axis(name), y))
  figure = Figure(panels, 300, columns=len(panels))
  return with_matplotlib.draw_with_matplotlib(figure)
