"""Spreading a population's members over devices.

All that concerns one member alone runs inside `jax.shard_map`, each device on
its share of the members; what concerns all of them is a few numbers per member
that are replicated.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

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
  mesh: Mesh | None, function: Callable[..., Any], setup: Any
) -> Callable[..., Any]:
  """Runs a function of members on each device's share of them.

  Args:
    mesh: the devices, or None for a plain call.
    function: (setup, *trees) -> tree; all leaves [P, ...].
    setup: the function's first argument.

  Returns:
    (*trees) -> tree, of leaves [P, ...].
  """
  local = functools.partial(function, setup)
  if mesh is None:
    return local
  spec = PartitionSpec(AXIS)
  return jax.shard_map(
    local, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False
  )


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
