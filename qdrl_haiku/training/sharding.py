"""Spreading a population's members over devices.

All that concerns one member alone runs inside `jax.shard_map`, each device on
its share of the members; what concerns all of them is a few numbers per member
that are replicated.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from qdrl_haiku import fusion, types
from qdrl_haiku.training import one_by_one

AXIS = "population"


def population_mesh(
  population_size: int, devices: Sequence[jax.Device] | None = None
) -> Mesh:
  """A mesh of as many devices as share a population evenly.

  Args:
    population_size: P, >= 1.
    devices: to choose from, by default all.

  Returns:
    A mesh with the one axis `population`, over the first n devices, where n
    is the largest divisor of P that there are devices for.
  """
  devices = jax.devices() if devices is None else devices
  size = max(
    n for n in range(1, len(devices) + 1) if population_size % n == 0
  )
  # jax.make_mesh has Explicit axes by default, which vmap over them can't use.
  return jax.make_mesh(
    (size,), (AXIS,), axis_types=(AxisType.Auto,), devices=devices[:size]
  )


def over_members(
  setup: Any, function: Callable[..., Any]
) -> Callable[..., Any]:
  """Runs a function of members on each device's share of them.

  Args:
    setup: the function's first argument; its `mesh` says on which devices, None
      for a plain call.
    function: (setup, *trees) -> tree; all leaves [P, ...].

  Returns:
    (*trees) -> tree, of leaves [P, ...].
  """
  mesh = setup.mesh
  if mesh is None:
    return functools.partial(function, setup)
  setup = setup._replace(learner=one_by_one.learner(setup.learner))
  local: Callable[..., Any] = functools.partial(function, setup)
  if setup.config.exact_placement:
    local = jax.vmap(one_by_one.one_by_one(_of_one(local)))
    # Such programs are compiled without fusion.
    local = fusion.prevented()(local)
  spec = PartitionSpec(AXIS)
  return jax.shard_map(
    local, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False
  )


def _of_one(function: Callable[..., Any]) -> Callable[..., Any]:
  """A function of members as one of a member, without the axis."""

  def of_one(*trees: Any) -> Any:
    trees = jax.tree.map(lambda x: x[None], trees)
    return jax.tree.map(lambda x: x[0], function(*trees))

  return of_one


def replicate(mesh: Mesh | None, tree: Any) -> Any:
  """Makes a tree known to every device, inside a compiled function.

  Args:
    mesh: the devices, or None to change nothing.
    tree: small arrays.

  Returns:
    The same tree.
  """
  if mesh is None:
    return tree
  return jax.lax.with_sharding_constraint(
    tree, NamedSharding(mesh, PartitionSpec())
  )


def everywhere(
  mesh: Mesh | None, function: Callable[..., Any]
) -> Callable[..., Any]:
  """Runs a function on every device by itself, inside a compiled function.

  Left alone, XLA would divide even a decision about a few numbers among the
  devices, which would then talk to each other in the midst of it.

  Args:
    mesh: the devices, or None for a plain call.
    function: of trees that every device knows.

  Returns:
    The function, whose result every device knows.
  """
  if mesh is None:
    return function
  known = PartitionSpec()
  return jax.shard_map(
    function, mesh=mesh, in_specs=known, out_specs=known, check_vma=False
  )


def put(mesh: Mesh, keys: types.Key) -> types.Key:
  """Makes keys known to every device, outside of compiled functions.

  Args:
    mesh: the devices, which may be of several processes.
    keys: the same in all processes.

  Returns:
    The same keys.
  """
  data = np.asarray(jax.random.key_data(keys))
  known = jax.make_array_from_callback(
    data.shape, NamedSharding(mesh, PartitionSpec()), lambda index: data[index]
  )
  return jax.random.wrap_key_data(known, impl=jax.random.key_impl(keys))


def to_host(tree: Any) -> Any:
  """Arrays of all devices as NumPy arrays, outside of compiled functions.

  Args:
    tree: on devices, which may be of several processes; then each of them has
      to call this.

  Returns:
    The same tree, in each process.
  """
  if jax.process_count() == 1:
    return jax.device_get(tree)
  return multihost_utils.process_allgather(tree, tiled=True)


def member(mesh: Mesh | None, members: Any, index: types.Array) -> Any:
  """One member, known to every device, inside a compiled function.

  Args:
    mesh: the devices, or None.
    members: leaves [P, ...].
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
  """As `controllers.inherit`, moving only what changes.

  The children are replaced one after the other; of each, its parent's device
  sends the parent to all devices. So k members are moved where k have other
  parents than themselves, whatever the size of the population.

  Args:
    mesh: the devices, or None.
    members: leaves [P, ...].
    parents: int32 [P], known to every device.
    in_place: whether no parent has another parent than itself, so that there
      need be no second copy of the members.

  Returns:
    The members after it.
  """

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

  return _on_shares(mesh, local, PartitionSpec(AXIS))(members, parents)


def _on_shares(
  mesh: Mesh | None, function: Callable[..., Any], out_spec: PartitionSpec
) -> Callable[..., Any]:
  """Runs (axis name or None, members, replicated) -> tree on each share."""
  if mesh is None:
    return functools.partial(function, None)
  return jax.shard_map(
    functools.partial(function, AXIS),
    mesh=mesh,
    in_specs=(PartitionSpec(AXIS), PartitionSpec()),
    out_specs=out_spec,
    check_vma=False,
  )


def _first(axis_name: str | None, num_local: int) -> Any:
  """The index of the first member on this device."""
  return 0 if axis_name is None else jax.lax.axis_index(axis_name) * num_local


def _fetch(axis_name: str | None, members: Any, index: types.Array) -> Any:
  """One member, from whatever device it is on."""
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
  """Unsigned integers that hold the same bits."""
  if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
    return jax.random.key_data(x)
  if x.dtype == bool:
    return x.astype(jnp.uint8)
  return jax.lax.bitcast_convert_type(
    x, jnp.dtype(f"uint{8 * x.dtype.itemsize}")
  )


def _from_bits(bits: types.Array, like: types.Array) -> types.Array:
  """The reverse of `_to_bits`."""
  if jnp.issubdtype(like.dtype, jax.dtypes.prng_key):
    return jax.random.wrap_key_data(bits, impl=jax.random.key_impl(like))
  if like.dtype == bool:
    return bits.astype(bool)
  return jax.lax.bitcast_convert_type(bits, like.dtype)
