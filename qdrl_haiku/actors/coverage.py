"""Counts how much of a space episodes visit, as METRA's authors do."""

from collections.abc import Callable

import jax.numpy as jnp

from qdrl_haiku import environments
from qdrl_haiku.types import Array

_DEFAULT_CELLS = 20
# Cells along an axis that are told apart; robots run less far than this.
_SPAN = 2**15


def coverage_cells(
  env: environments.BatchedEnvironment, num_cells: int | None = None
) -> Callable[[environments.State], Array] | None:
  """Returns a function from states to the indices of the cells they are in.

  Args:
    env: the environment.
    num_cells: cells along each of the first two axes of the descriptor; 0 for
      unit squares of a robot's x and y; None for unit squares if the
      environment is a robot, otherwise for 20 cells.

  Returns:
    (states [...]) -> int32 [...], a number for each cell; None if num_cells is
    None and the environment is no robot and has no descriptor.

  Raises:
    ValueError: if there is no such space.
  """
  position = environments.robot_position(env)
  if num_cells == 0 and position is None:
    raise ValueError(
      "coverage_cells=0 counts unit squares of x and y, but the environment is "
      "no robot; give a number of cells.")
  if num_cells in (None, 0) and position is not None:
    find = position
    return lambda state: _number(jnp.floor(find(state)))
  descriptor = env.descriptor
  if descriptor is None and num_cells is None:
    return None
  if descriptor is None:
    raise ValueError(
      f"coverage_cells={num_cells} are cells of a state descriptor, but the "
      "environment has none; leave it out.")
  count, axes = num_cells or _DEFAULT_CELLS, min(2, descriptor.size)
  lower = jnp.array(descriptor.lower[:axes])
  width = jnp.array(descriptor.upper[:axes]) - lower

  def cells(state: environments.State) -> Array:
    share = (state.info["next_state_descriptor"][..., :axes] - lower) / width
    return _number(jnp.clip(jnp.floor(share * count), 0, count - 1))

  return cells


def count_cells(cells: Array, counted: Array) -> Array:
  """Returns how many different cells episodes visit.

  Args:
    cells: int32 [..., S], of each step, by `coverage_cells`.
    counted: bool [..., S], which steps count.

  Returns:
    float32 [...], the number of different cells.
  """
  last = jnp.iinfo(jnp.int32).max
  in_order = jnp.sort(jnp.where(counted, cells, last), axis=-1)
  before = jnp.roll(in_order, 1, axis=-1).at[..., 0].set(last)
  is_new = (in_order != before) & (in_order != last)
  return jnp.sum(is_new, axis=-1).astype(jnp.float32)


def _number(cell: Array) -> Array:
  """Returns a number [...] for each cell [..., 1 or 2] of whole numbers."""
  limit = _SPAN // 2 - 1
  whole = jnp.clip(cell, -limit, limit).astype(jnp.int32) + limit
  return jnp.sum(whole * _SPAN ** jnp.arange(cell.shape[-1]), axis=-1)
