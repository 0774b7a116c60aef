"""Moving members from device to device: children take over from parents."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec

from qdrl_haiku import controllers, types
from qdrl_haiku.distributed import sharding


def member(mesh: Mesh | None, members: Any, index: types.Array) -> Any:
  """Returns one member, known to every device, inside a compiled function.

  Args:
    mesh: the devices, or None.
    members: leaves [S, ...].
    index: int32 [].

  Returns:
    The member; that alone is moved.
  """
  return _on_shares(mesh, _fetch, PartitionSpec())(members, index)


def inherit(
  mesh: Mesh | None,
  members: Any,
  parents: types.Array,
  in_place: bool = False,
) -> Any:
  """Does what `controllers.inherit` does, moving only what changes.

  The children are replaced one after the other; of each, its parent's device
  sends the parent to all devices. So k members are moved where k have other
  parents than themselves, whatever the size of the population.

  Args:
    mesh: the devices, or None.
    members: leaves [S, ...].
    parents: int32 [P], known to every device; slots beyond them stay.
    in_place: whether no parent has another parent than itself, so that there
      need be no second copy of the members.

  Returns:
    The members after it.
  """
  is_one_device = mesh is None or mesh.size == 1
  if is_one_device and not in_place and jax.default_backend() != "cpu":
    # For each turn of a loop an accelerator would start kernels for each array.
    return controllers.inherit(members, parents)

  def local(
    axis_name: str | None, members: Any, parents: types.Array
  ) -> Any:
    is_child = parents != jnp.arange(parents.shape[0])
    children = jnp.argsort(~is_child, stable=True)
    num_local = jax.tree.leaves(members)[0].shape[0]
    first = _first(axis_name, num_local)

    def replace(i: types.Array, after: Any) -> Any:
      child = children[i]
      parent = _fetch(axis_name, after if in_place else members, parents[child])
      place = child - first
      # Beyond the end on all devices but the child's own, and dropped there.
      place = jnp.where((place >= 0) & (place < num_local), place, num_local)
      return jax.tree.map(
        lambda x, row: x.at[place].set(row, mode="drop"), after, parent
      )

    return jax.lax.fori_loop(0, jnp.sum(is_child), replace, members)

  return _on_shares(mesh, local, PartitionSpec(sharding.AXIS))(members, parents)


def _on_shares(
  mesh: Mesh | None, function: Callable[..., Any], out_spec: PartitionSpec
) -> Callable[..., Any]:
  """Runs (axis name or None, members, replicated) -> tree on each share."""
  if mesh is None:
    return functools.partial(function, None)
  return jax.shard_map(
    functools.partial(function, sharding.AXIS),
    mesh=mesh,
    in_specs=(PartitionSpec(sharding.AXIS), PartitionSpec()),
    out_specs=out_spec,
    check_vma=False,
  )


def _first(axis_name: str | None, num_local: int) -> Any:
  """Returns the index of the first member on this device."""
  return 0 if axis_name is None else jax.lax.axis_index(axis_name) * num_local


def _fetch(axis_name: str | None, members: Any, index: types.Array) -> Any:
  """Returns one member, from whatever device it is on."""
  num_local = jax.tree.leaves(members)[0].shape[0]
  place = index - _first(axis_name, num_local)
  row = jax.tree.map(
    lambda x: jax.lax.dynamic_index_in_dim(
      x, jnp.clip(place, 0, num_local - 1), keepdims=False
    ),
    members,
  )
  if axis_name is None:
    return row
  is_here = (place >= 0) & (place < num_local)

  def send(x: types.Array) -> types.Array:
    # As integers: of floats, a sum with zero isn't always the same bits.
    bits = _to_bits(x)
    bits = jax.lax.psum(jnp.where(is_here, bits, 0), axis_name)
    return _from_bits(bits, x)

  return jax.tree.map(send, row)


def _to_bits(x: types.Array) -> types.Array:
  """Returns unsigned integers that hold the same bits."""
  if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
    return jax.random.key_data(x)
  if x.dtype == bool:
    return x.astype(jnp.uint8)
  return jax.lax.bitcast_convert_type(
    x, jnp.dtype(f"uint{8 * x.dtype.itemsize}")
  )


def _from_bits(bits: types.Array, like: types.Array) -> types.Array:
  """Returns the reverse of `_to_bits`."""
  if jnp.issubdtype(like.dtype, jax.dtypes.prng_key):
    return jax.random.wrap_key_data(bits, impl=jax.random.key_impl(like))
  if like.dtype == bool:
    return bits.astype(bool)
  return jax.lax.bitcast_convert_type(bits, like.dtype)


def refill(mesh: Mesh | None, members: Any, size: int) -> Any:
  """Fills the slots that are left over, outside of compiled functions.

  Args:
    mesh: the devices, None for no such thing.
    members: leaves [S, ...], shared by them; consumed.
    size: P, how many members there are.

  Returns:
    The members, with copies of the last one in the other slots.
  """
  slots = jax.tree.leaves(members)[0].shape[0]

  def fill(members: Any) -> Any:
    sources = jnp.minimum(jnp.arange(slots), size - 1)
    return inherit(mesh, members, sources, in_place=True)

  return jax.jit(fill, donate_argnums=0)(members)
