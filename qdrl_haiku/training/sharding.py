"""Spreading a population's members over devices.

All that concerns one member alone runs inside `jax.shard_map`, each device on
its share of the members; what concerns all of them is a few numbers per member
that are replicated.

Devices have equally many slots, since jax shares nothing unevenly. Where they
can't share P members, there are more slots than members: S, the next multiple
of their number. Members 0 to P - 1 are in the first ones; what is in the others
is computed too, and never looked at.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from qdrl_haiku import controllers, fusion, types
from qdrl_haiku.training import one_by_one

AXIS = "population"


def num_devices(
  sizes: Sequence[int], available: int, shared_evenly: int = 0
) -> int:
  """How many devices have least to do when they share batches of agents.

  Args:
    sizes: of the batches, the most important first.
    available: devices, >= 1.
    shared_evenly: of what they share without slots, 0 if there is nothing.

  Returns:
    Of the numbers that can share that the one, n, for which a device's share of
    the first batch, rounded up, is least; of several that for which its share
    of the second one is, and so on; then the least, which has the fewest slots.
  """
  return min(
    (n for n in range(1, available + 1) if shared_evenly % n == 0),
    key=lambda n: ([-(-size // n) for size in sizes], n),
  )


def population_mesh(
  population_size: int,
  devices: Sequence[jax.Device] | None = None,
  other_sizes: Sequence[int] = (),
  shared_evenly: int = 0,
) -> Mesh:
  """A mesh of the devices that share a population best.

  Args:
    population_size: P, >= 1.
    devices: to choose from, by default all.
    other_sizes: of other batches of agents that they share, the most important
      first.
    shared_evenly: see `num_devices`.

  Returns:
    A mesh with the one axis `population`, over the first n devices, see
    `num_devices`; of several processes over all, since each takes part.
  """
  devices = jax.devices() if devices is None else devices
  size = len(devices)
  if jax.process_count() == 1:
    sizes = (population_size, *other_sizes)
    size = num_devices(sizes, size, shared_evenly)
  # jax.make_mesh has Explicit axes by default, which vmap over them can't use.
  return jax.make_mesh(
    (size,), (AXIS,), axis_types=(AxisType.Auto,), devices=devices[:size]
  )


def mesh_for(setup: Any) -> Mesh:
  """A mesh of the devices that share best what a setup is composed of.

  Args:
    setup: a `Setup`.

  Returns:
    As `population_mesh`.
  """
  size, *other_sizes = setup.batch_sizes
  return population_mesh(
    size, other_sizes=other_sizes, shared_evenly=setup.shared_evenly
  )


def num_slots(mesh: Mesh | None, size: int) -> int:
  """In how many slots members are kept.

  Args:
    mesh: the devices, None for no such thing.
    size: how many members there are.

  Returns:
    The next multiple of the number of devices.
  """
  return size if mesh is None else -(-size // mesh.size) * mesh.size


def in_slots(mesh: Mesh | None, tree: Any) -> Any:
  """Fills the slots that are left over with copies of the last member.

  Args:
    mesh: the devices, None for no such thing.
    tree: leaves [P, ...] or, full already, [S, ...].

  Returns:
    The tree, leaves [S, ...].
  """

  def fill(x: types.Array) -> types.Array:
    size = x.shape[0]
    slots = num_slots(mesh, size)
    if slots == size:
      return x
    return x[jnp.minimum(jnp.arange(slots), size - 1)]

  return jax.tree.map(fill, tree)


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


def of_members(mesh: Mesh | None, tree: Any, size: int) -> Any:
  """Leaves out the slots that no member is in.

  Args:
    mesh: the devices, None for no such thing.
    tree: leaves [S, ...].
    size: P, how many members there are.

  Returns:
    The tree, leaves [P, ...]; known to every device if any slot is left out.
  """
  if num_slots(mesh, size) == size:
    return tree
  return jax.tree.map(lambda x: x[:size], replicate(mesh, tree))


def over_members(
  setup: Any, function: Callable[..., Any]
) -> Callable[..., Any]:
  """Runs a function of members on each device's share of them.

  Args:
    setup: the function's first argument; its `mesh` says on which devices, None
      for a plain call.
    function: (setup, *trees) -> tree; all leaves [S, ...].

  Returns:
    (*trees) -> tree, of leaves [S, ...]; it takes leaves [P, ...] too.
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
  spread = jax.shard_map(
    local, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False
  )
  return lambda *trees: spread(*in_slots(mesh, trees))


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
  return place(keys, NamedSharding(mesh, PartitionSpec()))


def place(x: types.Array, where: jax.sharding.Sharding) -> types.Array:
  """Puts an array where it belongs, outside of compiled functions.

  Args:
    x: known to this process, and the same in all; a typed key may be one.
    where: on which devices, which may be of several processes.

  Returns:
    The same array.
  """
  if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
    data = place(jax.random.key_data(x), where)
    return jax.random.wrap_key_data(data, impl=jax.random.key_impl(x))
  numbers = np.asarray(x)
  return jax.make_array_from_callback(
    numbers.shape, where, lambda index: numbers[index]
  )


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
  """As `controllers.inherit`, moving only what changes.

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
