"""The curve of a sweep."""

import numpy as np

from qdrl_haiku.drawing.figure import PALE, RETURN, Figure, Trace, plot_figure


def sweep_figure(
  name: str, values: tuple[float, ...], returns: np.ndarray
) -> Figure:
  """Describes the curve of a sweep: means, and where half of the episodes are.

  Args:
    name: of what changes, the title of its axis.
    values: K of them.
    returns: [K, N].
  """
  low, high = np.quantile(returns, [0.25, 0.75], axis=1)
  return plot_figure(
    [
      Trace(
        [*values, *reversed(values)], [*low, *reversed(high)], is_area=True,
        color=PALE, in_legend=False),
      Trace(values, returns.mean(axis=1), sizes=6)],
    name, RETURN)
