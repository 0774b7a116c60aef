"""Tessellations: which cell of a repertoire a descriptor belongs to, if any.

They are pytrees that can be passed to compiled functions. Descriptors are
float32; one outside the bounds belongs to the cell at the border, and one with
a NaN or an infinity to none: its cell is `num_cells`, which is out of range.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import ClassVar, NoReturn, Self

import jax
import jax.numpy as jnp
import numpy as np

from qdrl_haiku.checks import check_count
from qdrl_haiku.map_elites import k_means
from qdrl_haiku.types import Array, Key

MAX_CELLS = 2**30
"""Largest number of cells; int32 holds as many numbers more, for no cell."""
# With more, k-means takes many minutes.
_MAX_CENTROIDS = 50_000
# All pairs of which dominated novelty compares in each generation.
_MAX_PLACES = 2**20


class _Cells:
  """The bounds of a tessellation, and descriptors outside of them."""

  lower: tuple[float, ...]
  upper: tuple[float, ...]

  @property
  def num_dimensions(self) -> int:
    """D, of a descriptor."""
    return len(self.lower)

  def outside(self, descriptors: Array) -> Array:
    """Returns which finite descriptors [B, D] are out of bounds, bool [B]."""
    lower, upper = _float32(self.lower), _float32(self.upper)
    beyond = (descriptors < lower) | (descriptors > upper)
    return jnp.any(beyond, axis=1) & _is_finite(descriptors)

  def cells_for(self, setting: str) -> Self:
    """Returns itself, since it has the cells that a setting needs."""
    return self

  def places_for(self, setting: str) -> NoReturn:
    """Refuses a setting that needs places without cells."""
    raise ValueError(f"{setting} is without cells; take tessellation=none.")


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class Grid(_Cells):
  """Equal boxes, numbered in row-major order.

  A cell includes its lower edge, and the last one along a dimension its upper
  edge too; descriptors are compared with `edges`, and nothing is rounded.

  Attributes:
    shape: [D], the number of cells along each dimension, each >= 1; at most
      `MAX_CELLS` in all.
    lower: [D], the least descriptor.
    upper: [D], the greatest descriptor.

  Raises:
    ValueError: if a setting is out of its range, or if their lengths differ.
  """

  shape: tuple[int, ...]
  lower: tuple[float, ...]
  upper: tuple[float, ...]

  kind: ClassVar[str] = "grid"

  def __post_init__(self) -> None:
    lower, upper = _checked_bounds(self.lower, self.upper)
    counts = np.asarray(self.shape)
    is_integer = np.issubdtype(counts.dtype, np.integer)
    if counts.shape != (len(lower),) or not is_integer or np.any(counts < 1):
      raise ValueError(
        f"shape={self.shape!r} is not one count of cells for each of the"
        f" {len(lower)} dimensions of the bounds; use"
        f" {(10,) * len(lower)}, for example.")
    shape = tuple(counts.tolist())
    check_count(
      "the product of shape", math.prod(shape), 1, maximum=MAX_CELLS)
    object.__setattr__(self, "shape", shape)
    object.__setattr__(self, "lower", lower)
    object.__setattr__(self, "upper", upper)

  @property
  def num_cells(self) -> int:
    """C, the number of cells."""
    return math.prod(self.shape)

  @property
  def edges(self) -> tuple[np.ndarray, ...]:
    """The edges of n cells along each dimension, D times float32 [n + 1]."""
    bounds = zip(self.lower, self.upper, self.shape, strict=True)
    return tuple(
      _float32(low + (high - low) * np.arange(num + 1) / num)
      for low, high, num in bounds)

  @property
  def centroids(self) -> Array:
    """The middle of each cell, [C, D]."""
    bounds = zip(self.lower, self.upper, self.shape, strict=True)
    middles = [
      low + (high - low) * (np.arange(num) + 0.5) / num
      for low, high, num in bounds]
    grid = np.stack(np.meshgrid(*middles, indexing="ij"), axis=-1)
    return jnp.asarray(grid.reshape(self.num_cells, -1), jnp.float32)

  def cell(self, descriptors: Array) -> Array:
    """Finds the cells of descriptors.

    Args:
      descriptors: [B, D]; outside of the bounds, the border cell counts.

    Returns:
      int32 [B]: in [0, C), or C where a descriptor is not finite.
    """
    descriptors = jnp.asarray(descriptors, jnp.float32)
    # Compared rather than computed: rounding would move a descriptor on an
    # edge into another cell, and differently under jit.
    indices = tuple(
      jnp.searchsorted(edges[1:-1], x, side="right", method="scan_unrolled")
      for edges, x in zip(self.edges, descriptors.T, strict=True))
    cells = jnp.ravel_multi_index(indices, self.shape, mode="clip")
    return jnp.where(_is_finite(descriptors), cells, self.num_cells)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class CVT(_Cells):
  """Cells of the descriptors nearest to each centroid; `cvt` makes centroids.

  Descriptors are clipped to the bounds, and distances are measured with the
  bounds scaled to a unit cube; of equally near centroids the first counts.
  """

  centroids: Array  # float32 [C, D], inside the bounds.
  # [D], the least descriptor.
  lower: tuple[float, ...] = dataclasses.field(metadata={"static": True})
  # [D], the greatest descriptor.
  upper: tuple[float, ...] = dataclasses.field(metadata={"static": True})

  kind: ClassVar[str] = "cvt"

  def __post_init__(self) -> None:
    lower, upper = _checked_bounds(self.lower, self.upper)
    object.__setattr__(self, "lower", lower)
    object.__setattr__(self, "upper", upper)

  @property
  def num_cells(self) -> int:
    """C, the number of cells."""
    return self.centroids.shape[0]

  def cell(self, descriptors: Array) -> Array:
    """Finds the cells of descriptors; see `Grid.cell`."""
    descriptors = jnp.asarray(descriptors, jnp.float32)
    lower, upper = _float32(self.lower), _float32(self.upper)
    scale = 1 / (upper - lower)
    cells = k_means.k_means_nearest(
      (jnp.clip(descriptors, lower, upper) - lower) * scale,
      (self.centroids - lower) * scale)
    return jnp.where(_is_finite(descriptors), cells, self.num_cells)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Unstructured:
  """No cells but places: a descriptor doesn't say which place is its own."""

  # C, places, from 1 to 2^20.
  num_cells: int = dataclasses.field(metadata={"static": True})
  # D, of a descriptor, >= 1.
  num_dimensions: int = dataclasses.field(metadata={"static": True})
  # Or a CVT, whose cells QD score and coverage count; None for a sum over all
  # elites, and the share of the places that are occupied.
  grid: Grid | CVT | None = None

  kind: ClassVar[str] = "none"

  def __post_init__(self) -> None:
    for name in ("num_cells", "num_dimensions"):
      check_count(name, getattr(self, name), 1, maximum=_MAX_PLACES)

  def outside(self, descriptors: Array) -> Array:
    """Returns which finite descriptors are outside the grid, bool [B]."""
    if self.grid is None:
      return jnp.zeros(descriptors.shape[0], bool)
    return self.grid.outside(descriptors)

  def places_for(self, setting: str) -> Self:
    """Returns itself, since it has the places that a setting needs."""
    return self

  def cells_for(self, setting: str) -> NoReturn:
    """Refuses a setting that needs cells."""
    raise ValueError(
      f"{setting} needs cells, and with tessellation=none there are none; take "
      "a grid or cvt.")


Tessellation = Grid | CVT | Unstructured
"""Cells that cover the space of descriptors, or places without any."""


def cvt(
  key: Key, num_cells: int, lower: Sequence[float], upper: Sequence[float]
) -> CVT:
  """Makes cells of about equal size, however many dimensions there are.

  By k-means over uniform samples (Vassiliades et al., arXiv:1610.05729,
  algorithm 4).

  Args:
    key: consumed.
    num_cells: C, from 1 to 50,000. The time grows with its square; beyond a
      few thousand there are fewer iterations, from 30 down to 5.
    lower: [D], the least descriptor.
    upper: [D], the greatest descriptor.

  Raises:
    ValueError: if a setting is out of its range, or if lengths differ.
  """
  lower, upper = _checked_bounds(lower, upper)
  check_count("num_cells", num_cells, 1)
  if num_cells > _MAX_CENTROIDS:
    raise ValueError(
      f"num_cells={num_cells} takes k-means, whose time grows with its square,"
      f" too long; use at most {_MAX_CENTROIDS}, or a grid.")
  unit = k_means.k_means_centroids(key, int(num_cells), len(lower))
  centroids = _float32(lower) + unit * (_float32(upper) - _float32(lower))
  return CVT(centroids, lower, upper)


def _is_finite(descriptors: Array) -> Array:
  """Returns which descriptors [B, D] have finite numbers only."""
  return jnp.all(jnp.isfinite(descriptors), axis=1)


def _float32(x: Sequence[float] | np.ndarray) -> np.ndarray:
  return np.asarray(x, np.float32)


def _checked_bounds(
  lower: Sequence[float], upper: Sequence[float]
) -> tuple[tuple[float, ...], tuple[float, ...]]:
  """Returns the bounds as tuples, if they are bounds."""
  low, high = np.asarray(lower, np.float64), np.asarray(upper, np.float64)
  a, b = _float32(low), _float32(high)
  fits = low.ndim == 1 and low.size and low.shape == high.shape
  if not fits or not np.all((-np.inf < a) & (a < b) & (b < np.inf)):
    raise ValueError(
      f"lower={lower!r} is not below upper={upper!r} in each dimension; give"
      " finite bounds, one of each per dimension of a descriptor.")
  return tuple(low.tolist()), tuple(high.tolist())
