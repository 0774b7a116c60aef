"""Hyperparameters that follow a schedule, whatever the fitness."""

import jax
import jax.numpy as jnp

from qdrl_haiku.controllers.base import SURVIVE, Controller, Decision
from qdrl_haiku.types import Array, Hyperparams, Key


def schedule(hyperparams: Hyperparams) -> Controller:
  """Makes a controller that plays hyperparameters back.

  No member is replaced, not even a diverged one. So with the schedule of an
  agent that PBT tuned (`lineage.schedule_from_lineage`), what agents learn is
  due to hyperparameters alone, and not to inherited weights.

  Args:
    hyperparams: leaves [G], of all members in generation 1 to G; later
      generations keep the last. One that never changes may be a number.

  Returns:
    The controller, whose state is the generation that is trained, int32 [].
    Its operator is "schedule" for all where a hyperparameter changes,
    otherwise "survive".
  """

  def at(generation: int | Array, population_size: int) -> Hyperparams:
    """Returns the hyperparameters of a generation, leaves [P]."""

    def value(leaf: Array) -> Array:
      leaf = jnp.atleast_1d(jnp.asarray(leaf, jnp.float32))
      index = jnp.clip(generation - 1, 0, leaf.shape[0] - 1)
      return jnp.full(population_size, leaf[index])

    return jax.tree.map(value, hyperparams)

  def init(key: Key, population_size: int) -> tuple[Array, Hyperparams]:
    del key
    return jnp.ones((), jnp.int32), at(1, population_size)

  def update(
    state: Array, key: Key, fitness: Array, hyperparams: Hyperparams
  ) -> tuple[Array, Decision]:
    del key
    population_size = fitness.shape[0]
    new = at(state + 1, population_size)
    changes = jax.tree.map(lambda x, y: x != y, new, hyperparams)
    changed = jnp.any(jnp.stack(jax.tree.leaves(changes)), axis=0)
    return state + 1, Decision(
      parents=jnp.arange(population_size, dtype=jnp.int32), hyperparams=new,
      operator=changed.astype(jnp.int32))

  return Controller(init, update, (SURVIVE, "schedule"))
