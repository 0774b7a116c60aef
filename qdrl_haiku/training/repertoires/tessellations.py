"""Makes the cells of a descriptor's space, or places without cells."""

import math

import jax
import jax.numpy as jnp

from qdrl_haiku import environments, map_elites


def make_tessellation(
  kind: str, grid_shape: tuple[int, ...] | None, num_cells: int,
  descriptor: environments.Descriptor, seed: int = 0,
  centroids: jax.typing.ArrayLike | None = None,
) -> map_elites.Tessellation:
  """Makes cells, or places.

  Args:
    kind: "grid", "cvt", or "none" for places.
    grid_shape: cells along each descriptor, of "grid", and of the grid that
      measures "none"; None for 32 x 32, if that fits.
    num_cells: cells of "cvt", or places.
    descriptor: whose bounds count.
    seed: of the centroids of "cvt".
    centroids: [C, D], in place of new ones.

  Raises:
    ValueError: if the shape doesn't fit the descriptor.
  """
  bounds = (descriptor.lower, descriptor.upper)
  if kind == "cvt":
    if centroids is not None:
      return map_elites.CVT(jnp.asarray(centroids), *bounds)
    return map_elites.cvt(jax.random.key(seed), num_cells, *bounds)
  shape = grid_shape or (32, 32)
  fits = len(shape) == descriptor.size
  is_bounded = all(map(math.isfinite, (*bounds[0], *bounds[1])))
  if grid_shape is None and not (fits and is_bounded):
    return map_elites.Unstructured(num_cells, descriptor.size, None)
  if not fits:
    raise ValueError(
      f"grid_shape={','.join(map(str, shape))} doesn't fit the descriptor "
      f"{', '.join(descriptor.names)}; give {descriptor.size} numbers like "
      f"{','.join(['32'] * descriptor.size)}.")
  grid = map_elites.Grid(shape, *bounds)
  if kind == "none":
    return map_elites.Unstructured(num_cells, descriptor.size, grid)
  return grid
