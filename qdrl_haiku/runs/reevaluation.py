"""A second look at a repertoire's elites: what it'd be without their luck."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from qdrl_haiku import map_elites, types
from qdrl_haiku.cpu import compiler_options
from qdrl_haiku.training import elites as elites_lib
from qdrl_haiku.training import initial_states
from qdrl_haiku.training.setup import Setup


def batch_size(setup: Setup, num_reevaluations: int) -> int:
  """Returns how many elites are evaluated at once.

  Args:
    setup: with `map_elites`.
    num_reevaluations: episodes of each elite, >= 1.

  Returns:
    As many as a generation evaluates, or so many fewer that there are no more
    episodes at once than there; but one for each device, and a multiple of
    their number.
  """
  qd = setup.map_elites
  assert qd is not None
  num_agents = setup.batch_sizes[-1]
  num_episodes = num_agents * setup.config.num_eval_episodes
  at_once = min(num_agents, num_episodes // num_reevaluations)
  num_devices = _num_devices(setup)
  return max(1, at_once // num_devices) * num_devices


def batch(setup: Setup, num_reevaluations: int) -> Any:
  """Returns what a batch of elites is evaluated with, to be counted.

  Args:
    setup: with `map_elites`, in an environment with descriptors.
    num_reevaluations: episodes of each elite, >= 1.

  Returns:
    Shapes and dtypes of its agents and environments, and of what is recorded
    of the episodes.
  """
  descriptor = setup.eval_env.descriptor
  assert descriptor is not None
  size = batch_size(setup, num_reevaluations)
  num_steps = setup.eval_env.episode_steps

  def make() -> Any:
    keys = jax.random.split(jax.random.key(0), (size, num_reevaluations))
    return (
      jax.vmap(setup.learner.init)(keys[:, 0]),
      setup.eval_env.reset(keys),
      jnp.zeros((num_steps, *keys.shape, descriptor.size)),
    )

  return jax.eval_shape(make)


def reevaluate(
  setup: Setup,
  repertoire: map_elites.Repertoire,
  key: types.Key,
  num_reevaluations: int,
) -> map_elites.Repertoire:
  """Returns what the repertoire would be if its elites had not been lucky.

  Each elite is evaluated again, and added to an empty repertoire by its mean
  fitness and its mean descriptor (the "corrected" repertoire of Flageat and
  Cully, "Fast and stable MAP-Elites in noisy domains", 2020). Of several
  processes each has to call this.

  Args:
    setup: with `map_elites` and a mesh.
    repertoire: whose elites are looked at, on all devices.
    key: consumed; the elite of cell i draws from `fold_in(key, i)`.
    num_reevaluations: episodes of each elite, >= 1.

  Returns:
    The new repertoire. Instead of genotypes it holds the cells, int32, in
    which they were.
  """
  qd = setup.map_elites
  assert qd is not None
  corrected = map_elites.Repertoire.init(jnp.int32(0), qd.tessellation)
  occupied = np.flatnonzero(jax.device_get(repertoire.fitness) > -np.inf)
  occupied = occupied.astype(np.int32)
  if not occupied.size:
    return corrected

  def evaluate(
    elites: map_elites.Elite, cells: types.Array, env_states: Any
  ) -> tuple[types.Array, types.Array]:
    chosen = jax.tree.map(lambda x: x[cells], elites)
    return elites_lib.fitness_and_descriptors(
      elites_lib.evaluate_elites(setup, chosen, env_states)
    )

  def draw(cells: types.Array, key: types.Key) -> Any:
    keys = jax.vmap(jax.random.fold_in, (None, 0))(key, cells)
    config = dataclasses.replace(
      setup.config, num_eval_episodes=num_reevaluations
    )
    return initial_states.draw_evaluation(setup._replace(config=config), keys)

  draw_all = _compiled(setup, draw, is_seldom=True)
  evaluate_all = _compiled(setup, evaluate)
  num_devices = _num_devices(setup)
  size = min(
    batch_size(setup, num_reevaluations),
    -(-occupied.size // num_devices) * num_devices,
  )
  found = []
  for first in range(0, occupied.size, size):
    # The last one fills up the last batch.
    cells = occupied.take(np.arange(first, first + size), mode="clip")
    env_states = draw_all(cells, key)
    found.append(
      jax.device_get(evaluate_all(repertoire.genotypes, cells, env_states))
    )
  fitness, descriptors = (
    jnp.concatenate(x)[: occupied.size] for x in zip(*found, strict=True)
  )
  return corrected.add(occupied, fitness, descriptors)


def _compiled(
  setup: Setup, function: Callable[..., Any], is_seldom: bool = False
) -> Callable[..., Any]:
  """Compiles a function, whose results every device has."""
  assert setup.mesh is not None
  options = compiler_options.of_mesh(setup.mesh, setup.config.exact_placement)
  return jax.jit(
    function,
    out_shardings=NamedSharding(setup.mesh, PartitionSpec()),
    compiler_options=options.once if is_seldom else options.often,
  )


def _num_devices(setup: Setup) -> int:
  return 1 if setup.mesh is None else setup.mesh.size
