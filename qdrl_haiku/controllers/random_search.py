"""Random search, with which every way of tuning is to be compared."""

from typing import Any

from qdrl_haiku.controllers.base import Controller
from qdrl_haiku.controllers.pbt import PBTConfig, pbt


def random_search(search_space: Any) -> Controller:
  """Makes the controller that draws hyperparameters once and leaves them.

  Nobody is replaced but who is non-finite: it takes over from one of the others
  and gets fresh hyperparameters, so that all members are used to the end. Where
  none is finite, all are resampled, as with `pbt`.

  Args:
    search_space: a tree shaped as the hyperparameters, its leaves ranges.

  Returns:
    The controller, whose state is ().

  Raises:
    ValueError: if a leaf of the search space is not a range.
  """
  config = PBTConfig(exploit="none", explore="resample")
  return pbt(config, search_space)
