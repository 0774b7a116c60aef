"""A user's controller that decides by what it remembers.

It keeps the best fitness that each place ever had. The member furthest below
its record takes over from the one nearest to it, with half its noise.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from qdrl_haiku import controllers


class State(NamedTuple):
  records: Any
  num_decisions: Any


def make_controller(search_space):
  def init(key, population_size):
    drawn = [
      range_.sample(jax.random.fold_in(jax.random.fold_in(key, i), j))
      for i, range_ in enumerate(jax.tree.leaves(search_space))
      for j in range(population_size)]
    columns = jnp.stack(drawn).reshape(-1, population_size)
    state = State(jnp.full(population_size, -jnp.inf), jnp.zeros((), jnp.int32))
    treedef = jax.tree.structure(search_space)
    return state, jax.tree.unflatten(treedef, list(columns))

  def update(state, key, fitness, hyperparams):
    del key
    records = jnp.fmax(state.records, fitness)
    fallen = jnp.where(jnp.isfinite(fitness), records - fitness, jnp.inf)
    child, parent = jnp.argmax(fallen), jnp.argmin(fallen)
    members = jnp.arange(fitness.shape[0], dtype=jnp.int32)
    is_child = (members == child) & (child != parent)
    parents = jnp.where(is_child, parent, members).astype(jnp.int32)
    inherited = jax.tree.map(lambda x: x[parents], hyperparams)
    inherited["noise"] = jnp.where(
      is_child, 0.5 * inherited["noise"], inherited["noise"])
    return State(records, state.num_decisions + 1), controllers.Decision(
      parents, inherited, is_child.astype(jnp.int32))

  return controllers.Controller(init, update, ("survive", "fallen"))
