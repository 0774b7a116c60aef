"""Declares a hyperparameter: of a learner, or a tunable of an environment."""

import dataclasses
import math

from qdrl_haiku import checks, ranges


@dataclasses.dataclass(frozen=True)
class Hyperparameter:
  """A number that may change while an agent learns, without recompiling.

  Attributes:
    default: its value where nothing else is said; None if that depends on the
      sizes of observations and actions.
    help: what it is, in a few words.
    low: the least value that makes sense.
    high: the largest one.
    search: the range that controllers search by default, such as
      `controllers.LogUniform(1e-4, 1e-2)`; None for one that isn't searched.
    excludes_low: whether it has to be above `low`.
  """

  default: float | None
  help: str
  low: float = 0.0
  high: float = math.inf
  search: ranges.Range | None = None
  excludes_low: bool = False

  def __post_init__(self) -> None:
    if not isinstance(self.search, ranges.Range | None):
      raise ValueError(
        f"search={self.search!r} is no range (until 0.4 it was a text); give "
        "one, such as controllers.LogUniform(1e-4, 1e-2).")

  def check(self, where: str, value: float) -> None:
    """Refuses a value that makes no sense.

    Args:
      where: names the setting and its value in the message: "--tau=2".
      value: of the hyperparameter.

    Raises:
      ValueError: if it is out of bounds, or would overflow or become 0 in
        float32.
    """
    is_above = value > self.low if self.excludes_low else value >= self.low
    if is_above and value <= self.high and checks.fits_float32(value):
      return
    above, most, on = "from", "to", " on"
    if self.excludes_low:
      above, most, on = "above", "and at most", ""
    bounds = f" {above} {self.low:g}" if self.low > -math.inf else ""
    if self.high < math.inf:
      bounds += f" {most} {self.high:g}"
    elif bounds:
      bounds += on
    if 0 < abs(value) < checks.SMALLEST_FLOAT:
      bounds += f"; float32 holds none below {checks.SMALLEST_FLOAT:g} well"
    if checks.LARGEST_FLOAT < abs(value) < math.inf:
      bounds += f"; float32 holds none beyond {checks.LARGEST_FLOAT:g} well"
    raise ValueError(f"{where} makes no sense; give a finite number{bounds}.")
