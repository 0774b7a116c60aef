"""Spreading a population's members over devices.

All that concerns one member alone runs inside `jax.shard_map`, each device on
its share of the members; what concerns all of them is a few numbers per member
that are replicated.

All devices have equally many slots, since jax can't shard unevenly: S of them,
the next multiple of their number. Members are in the first P slots; the spare
ones are computed too, and their results ignored.
"""

import functools
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from qdrl_haiku.types import Array, Key, Tree

AXIS = "population"
# The specs of arrays that are sharded by member, and of replicated arrays.
SHARDED, REPLICATED = PartitionSpec(AXIS), PartitionSpec()


def num_sharding_devices(
  sizes: Sequence[int], available: int, num_shared_cells: int = 0
) -> int:
  """Returns the least number of devices with the fewest agents on each.

  It is at most `available`, for batches of agents of these `sizes`, the most
  important first, and divides `num_shared_cells`, if there are any.
  """
  return min(
    (n for n in range(1, available + 1) if num_shared_cells % n == 0),
    key=lambda n: ([-(-size // n) for size in sizes], n))


def population_mesh(
  population_size: int, devices: Sequence[jax.Device] | None = None,
  other_sizes: Sequence[int] = (), num_shared_cells: int = 0,
) -> Mesh:
  """Makes the mesh of devices over which a population of P is sharded.

  Its one axis, `population`, is over the first devices, as many as leave the
  fewest agents on each, or with several processes over all.

  Args:
    population_size: P.
    devices: to choose from, by default all of jax's.
    other_sizes: those of other batches of agents, the most important first.
    num_shared_cells: C, of a repertoire that devices share; 0 for none.
  """
  devices = jax.devices() if devices is None else devices
  size = len(devices)
  if jax.process_count() == 1:
    sizes = (population_size, *other_sizes)
    size = num_sharding_devices(sizes, size, num_shared_cells)
  # jax.make_mesh has Explicit axes by default, which vmap over them can't use.
  return jax.make_mesh(
    (size,), (AXIS,), axis_types=(AxisType.Auto,), devices=devices[:size])


def num_sharded_slots(mesh: Mesh | None, size: int) -> int:
  """Returns S, the number of slots for P members: a multiple of the devices."""
  return size if mesh is None else -(-size // mesh.size) * mesh.size


def shard_into_slots(mesh: Mesh | None, tree: Tree) -> Tree:
  """Puts trees [P, ...] into S slots; spare ones copy the last member."""

  def fill(x: Array) -> Array:
    size = x.shape[0]
    slots = num_sharded_slots(mesh, size)
    if slots == size:
      return x
    return x[jnp.minimum(jnp.arange(slots), size - 1)]

  return jax.tree.map(fill, tree)


def all_gather(mesh: Mesh | None, tree: Tree, size: int) -> Tree:
  """Replicates sharded arrays on every device, without the spare slots.

  All are sent at once. Of any two collectives in a program, one has to need the
  other's result: XLA keeps no order of its own in programs that it has read
  from a file (`cli.devices`), and devices could wait for ever.

  Args:
    mesh: the devices; None for one.
    tree: leaves [S, ...].
    size: P, how many of the S slots are returned.
  """
  if mesh is not None and mesh.size > 1:
    gather = functools.partial(_gather, mesh.size)
    tree = run_on_devices(mesh, gather, SHARDED, REPLICATED)(tree)
  return jax.tree.map(lambda x: x[:size], tree)


def _gather(num_devices: int, tree: Tree) -> Tree:
  """Returns leaves [S, ...] of all devices, given this one's [S / n, ...]."""
  index = jax.lax.axis_index(AXIS)

  def padded(x: Array) -> Array:
    mine = bitcast_to_integers(x)
    all_of_them = jnp.zeros((num_devices, *mine.shape), mine.dtype)
    all_of_them = all_of_them.at[index].set(mine)
    return all_of_them.reshape(-1, *mine.shape[1:])

  # One sum of many arrays, which XLA makes one message; gathers stay many.
  summed = jax.lax.psum(jax.tree.map(padded, tree), AXIS)
  return jax.tree.map(bitcast_from_integers, summed, tree)


def run_on_devices(
  mesh: Mesh, function: Callable[..., Tree], in_specs: Tree, out_specs: Tree
) -> Callable[..., Tree]:
  """Makes a function that runs on each device of `mesh`, on its shards.

  `in_specs` and `out_specs` say of the arguments and results of `function`,
  as tree prefixes of them, whether they are `SHARDED` or `REPLICATED`.
  """
  return jax.shard_map(
    function, mesh=mesh, in_specs=in_specs, out_specs=out_specs,
    check_vma=False)


def run_on_shards(
  mesh: Mesh | None, function: Callable[..., Tree], known: Tree
) -> Callable[..., Tree]:
  """Makes (trees [P, ...]) -> tree [S, ...], each device with its own slots.

  It calls `function` (`known`, trees [S, ...]), of what all devices of `mesh`
  know and what is in slots. Without a mesh S is P.
  """
  if mesh is None:
    return lambda *trees: function(known, trees)
  spread = run_on_devices(mesh, function, (REPLICATED, SHARDED), SHARDED)
  return lambda *trees: spread(known, shard_into_slots(mesh, trees))


def replicate(mesh: Mesh | None, tree: Tree) -> Tree:
  """Makes a tree known to every device, inside a compiled function."""
  if mesh is None:
    return tree
  return jax.lax.with_sharding_constraint(tree, NamedSharding(mesh, REPLICATED))


def run_replicated(
  mesh: Mesh | None, function: Callable[..., Tree]
) -> Callable[..., Tree]:
  """Runs a function on every device by itself, inside a compiled function.

  Left alone, XLA would divide even a decision about a few numbers among them.
  """
  if mesh is None:
    return function
  return run_on_devices(mesh, function, REPLICATED, REPLICATED)


def put_keys_on_mesh(mesh: Mesh, keys: Key) -> Key:
  """Makes keys known to every device, outside of compiled functions."""
  return put_sharded(keys, NamedSharding(mesh, REPLICATED))


def put_sharded(x: Array, where: jax.sharding.Sharding) -> Array:
  """Puts an array on devices by a sharding, outside of compiled functions."""
  if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
    data = put_sharded(jax.random.key_data(x), where)
    return jax.random.wrap_key_data(data, impl=jax.random.key_impl(x))
  numbers = np.asarray(x)
  return jax.make_array_from_callback(
    numbers.shape, where, lambda index: numbers[index])


def fetch_sharded(tree: Tree) -> Tree:
  """Fetches arrays of all devices as NumPy's, outside of compiled functions."""
  if jax.process_count() == 1:
    return jax.device_get(tree)
  return multihost_utils.process_allgather(tree, tiled=True)


def bitcast_to_integers(x: Array) -> Array:
  """Returns an array's bits as unsigned integers, for devices to send.

  They are sent by adding zeros, which can change a float's bits (-0.0 + 0.0).
  """
  if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
    return jax.random.key_data(x)
  if x.dtype == bool:
    return x.astype(jnp.uint32)
  bits = jax.lax.bitcast_convert_type(
    x, jnp.dtype(f"uint{8 * x.dtype.itemsize}"))
  return bits if bits.dtype == jnp.uint64 else bits.astype(jnp.uint32)


def bitcast_from_integers(bits: Array, like: Array) -> Array:
  """Returns the reverse of `bitcast_to_integers`."""
  if jnp.issubdtype(like.dtype, jax.dtypes.prng_key):
    return jax.random.wrap_key_data(bits, impl=jax.random.key_impl(like))
  if like.dtype == bool:
    return bits.astype(bool)
  bits = bits.astype(jnp.dtype(f"uint{8 * like.dtype.itemsize}"))
  return jax.lax.bitcast_convert_type(bits, like.dtype)
