"""Which frictions show: MuJoCo takes the larger one of two geoms."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from qdrl_haiku import names, ranges
from qdrl_haiku.ranges import Range

# How many of a geom's frictions act in a contact of so many dimensions: where
# it slides, twists and rolls.
_NUM_FRICTIONS = {1: 0, 3: 1, 4: 2, 6: 3}


def check_friction_shows(
  model: Any, backend: str | None, name: str, drawn: Mapping[str, Range]
) -> list[str]:
  """Refuses a factor of friction that other geoms' frictions always hide.

  Args:
    model: MuJoCo's.
    backend: of brax, or None.
    name: of the factor: "friction", or "friction/" and a geom's name.
    drawn: the ranges of all that is randomised, by name.

  Returns:
    A line that says where it's hidden at times, or nothing.

  Raises:
    ValueError: if no contact has that friction, or it's hidden everywhere.
  """
  low, high = ranges.bounds(drawn[name])
  found = sorted(_hiding_frictions(model, backend, name, drawn), reverse=True)
  if not found:
    raise ValueError(
      f"randomize={name!r} has no effect: no contact has that friction; leave "
      "it out.")
  if all(high <= least for _, least, _ in found):
    raise ValueError(
      f"randomize={name!r} has no effect up to {found[-1][1]:g}: MuJoCo takes "
      f"the larger of two geoms' frictions, here that of {found[-1][2]}; give "
      "larger factors, or 'friction', of all geoms.")
  places = dict.fromkeys(
    f"{most:g} on {geom}" for most, _, geom in found if low < most)
  if not places:
    return []
  where = ", ".join(list(places)[:3]) + ", ..." * (len(places) > 3)
  return [
    f"randomize={name!r} may change nothing below {where}: MuJoCo takes the "
    "larger of two geoms' frictions"]


def _hiding_frictions(
  model: Any, backend: str | None, name: str, drawn: Mapping[str, Range]
) -> Iterator[tuple[float, float, str]]:
  """Yields below which factors, at most and at least, what hides a friction."""
  from mujoco.mjx._src import collision_driver  # Which brax's own asks too.

  condim, friction = model.geom_condim, model.geom_friction
  for *geoms, pair in collision_driver.geom_pairs(model):
    mine, other = sorted(geoms, key=lambda i: not _is_of(model, name, i))
    if not _is_of(model, name, mine):
      continue
    # Where priorities differ, the geom with the higher one decides alone.
    rank = int(np.sign(
      model.geom_priority[mine] - model.geom_priority[other]))
    dims = {1: condim[mine], -1: condim[other], 0: condim[geoms].max()}[rank]
    # In brax's own physics all that touches slides, and nothing else.
    number = 1
    if backend in ("mjx", "warp"):
      number = _NUM_FRICTIONS[int(model.pair_dim[pair] if pair >= 0 else dims)]
    if not number:
      continue
    is_both = _is_of(model, name, other)
    if not is_both and pair < 0 and rank < 0:
      continue
    label = model.geom(other).name or f"geom {other}"
    if is_both or pair >= 0 or rank > 0:
      yield 0.0, 0.0, label
      continue
    pairs = friction[[mine, other], :number].T
    least = min((b / a for a, b in pairs if a > 0), default=np.inf)
    others = [
      ranges.bounds(x) for text, x in drawn.items()
      if text.startswith("friction/") and _is_of(model, text, other)]
    low, high = np.prod([(1.0, 1.0), *others], axis=0)
    yield least * high, least * low, label


def _is_of(model: Any, name: str, geom: int) -> bool:
  """Returns whether a factor, maybe of a glob, is of a geom."""
  return names.is_of(name.partition("/")[2], model.geom(geom).name)
