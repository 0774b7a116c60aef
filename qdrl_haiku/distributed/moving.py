"""Moves members from device to device, from parents to their children.

Each move sends the number of the next one along with the member. So a move
can't start before the one that it follows, and devices wait for each other in
one order, even where XLA has forgotten its own (`cli.devices`).
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding

from qdrl_haiku import controllers, platform
from qdrl_haiku.distributed import sharding
from qdrl_haiku.types import Array, Tree


def move_member_to_all(
  mesh: Mesh | None, members: Tree, index: Array, turn: Array | int = 0
) -> tuple[Tree, Array]:
  """Returns one member, known to every device, and the number of the next move.

  For compiled functions.

  Args:
    mesh: the devices; None for one.
    members: leaves [S, ...], divided among the devices.
    index: int32 [], of the member.
    turn: the number of this move, see above.
  """
  fetch = _make_for_shares(mesh, _fetch, sharding.REPLICATED)
  return fetch(members, (index, jnp.int32(turn)))


def inherit_by_moving(
  mesh: Mesh | None, members: Tree, parents: Array, turn: Array | int = 0,
  in_place: bool = False,
) -> tuple[Tree, Array]:
  """Replaces members as `controllers.inherit` does, moving only what changes.

  The children are replaced one after the other: for each of them, its parent's
  device sends the parent to all devices.

  Args:
    mesh: the devices; None for one.
    members: leaves [S, ...], divided among the devices.
    parents: int32 [P], the index of each member's parent, or its own.
    turn: the number of the first move.
    in_place: whether parents are read from members that were changed already,
      which saves a copy; no parent may be a child then.

  Returns:
    The members, and the number of the next move.
  """
  first_turn = jnp.int32(turn)
  is_one_device = mesh is None or mesh.size == 1
  if is_one_device and not in_place and not platform.branches_cheaply():
    return controllers.inherit(members, parents), first_turn

  def local(
    axis_name: str | None, members: Tree, known: tuple[Array, Array]
  ) -> tuple[Tree, Array]:
    parents, first_turn = known
    is_child = parents != jnp.arange(parents.shape[0])
    children = jnp.argsort(~is_child, stable=True)
    num_local = jax.tree.leaves(members)[0].shape[0]
    first = _first(axis_name, num_local)

    def replace(state: tuple[Tree, Array]) -> tuple[Tree, Array]:
      after, turn = state
      child = children[turn - first_turn]
      parent, turn = _fetch(
        axis_name, after if in_place else members, (parents[child], turn))
      place = child - first
      # Beyond the end on all devices but the child's own, and dropped there.
      place = jnp.where((place >= 0) & (place < num_local), place, num_local)
      after = jax.tree.map(
        lambda x, row: x.at[place].set(row, mode="drop"), after, parent)
      return after, turn

    return jax.lax.while_loop(
      lambda state: state[1] - first_turn < jnp.sum(is_child), replace,
      (members, first_turn))

  move = _make_for_shares(mesh, local, (sharding.SHARDED, sharding.REPLICATED))
  return move(members, (parents, first_turn))


def _make_for_shares(
  mesh: Mesh | None, function: Callable[..., Tree], out_spec: Tree
) -> Callable[..., Tree]:
  """Runs (axis name or None, members, replicated) -> tree on each share."""
  if mesh is None:
    return functools.partial(function, None)
  on_share = functools.partial(function, sharding.AXIS)
  in_specs = (sharding.SHARDED, sharding.REPLICATED)
  return sharding.run_on_devices(mesh, on_share, in_specs, out_spec)


def _first(axis_name: str | None, num_local: int) -> Array | int:
  """Returns the index of the first member on this device."""
  return 0 if axis_name is None else jax.lax.axis_index(axis_name) * num_local


def _fetch(
  axis_name: str | None, members: Tree, which: tuple[Array, Array]
) -> tuple[Tree, Array]:
  """Returns one member, from whatever device it is on, and the next turn."""
  index, turn = which
  num_local = jax.tree.leaves(members)[0].shape[0]
  place = index - _first(axis_name, num_local)
  row = jax.tree.map(
    lambda x: jax.lax.dynamic_index_in_dim(
      x, jnp.clip(place, 0, num_local - 1), keepdims=False),
    members)
  message = row, turn + 1
  if axis_name is None:
    return message
  is_here = (place >= 0) & (place < num_local)
  shares = jax.tree.map(sharding.bitcast_to_integers, message)
  sent = jax.lax.psum(
    jax.tree.map(lambda x: jnp.where(is_here, x, 0), shares), axis_name)
  return jax.tree.map(sharding.bitcast_from_integers, sent, message)


def move_into_spare_slots(mesh: Mesh | None, members: Tree, size: int) -> Tree:
  """Copies the last of `size` members into the spare slots after it.

  For use outside of compiled functions; the `members`, leaves [S, ...] on the
  devices of `mesh`, are donated.
  """
  slots = jax.tree.leaves(members)[0].shape[0]

  def fill(members: Tree) -> Tree:
    sources = jnp.minimum(jnp.arange(slots), size - 1)
    return inherit_by_moving(mesh, members, sources, in_place=True)[0]

  # Left to itself, jax would replicate empty arrays.
  where = None if mesh is None else NamedSharding(mesh, sharding.SHARDED)
  return jax.jit(fill, donate_argnums=0, out_shardings=where)(members)
