"""Describers: what makes the descriptor of an individual of its episodes."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from qdrl_haiku import trees
from qdrl_haiku.map_elites.containers import Container
from qdrl_haiku.map_elites.emitters import Evaluated
from qdrl_haiku.map_elites.repertoire import Repertoire
from qdrl_haiku.types import Array, Key, Tree

EPISODES = "episodes"


class Describer(NamedTuple):
  """Describes episodes, as pure functions; it may learn to do so better.

  Axes: T steps, N episodes, D descriptor, C cells. Keys are consumed.

  Attributes:
    look: (an environment's states [...] after a step) -> what is looked at of
      them, a tree of arrays [..., ...].
    summarize: (looks [T, ...], mask bool [T] of the steps that belong to the
      episode) -> the episode, any tree of arrays, by which it's described.
    describe: (state, episode) -> descriptor [D].
    init: (key) -> state, any tree of arrays; () of one that doesn't learn.
    improve: (state, repertoire, key) -> (state, whether it differs, bool []),
      after each generation. The repertoire's extra "episodes" has those by
      which each elite was described, leaves [C, N, ...]. Where the state
      differs, all elites are described and placed anew. None if it never does.
  """

  look: Callable[[Tree], Tree]
  summarize: Callable[[Tree, Array], Tree]
  describe: Callable[[Tree, Tree], Array]
  init: Callable[[Key], Tree] = lambda key: ()
  improve: Callable[[Tree, Repertoire, Key], tuple[Tree, Array]] | None = None


def improve_describer(
  describer: Describer, container: Container, state: Tree, repertoire: Tree,
  key: Key,
) -> tuple[Tree, Tree]:
  """Lets a describer improve, and places elites anew where it has.

  Args:
    describer: which may have nothing to improve.
    container: which keeps "episodes", and shows elites.
    state: the describer's.
    repertoire: the container's state.
    key: consumed.

  Returns:
    The describer's state and the container's.

  Raises:
    ValueError: if the describer's new state is another tree.
  """
  if describer.improve is None:
    return state, repertoire
  shown = container.show(repertoire)
  improved, differs = describer.improve(state, shown, key)
  if difference := trees.tree_difference(improved, state):
    raise ValueError(
      "the state that the describer's improve returns differs from that of "
      f"init: {difference}; return the same tree, shapes and dtypes.")

  def place() -> Tree:
    describe = jax.vmap(jax.vmap(describer.describe, (None, 0)), (None, 0))
    elites = Evaluated(
      shown.genotypes,
      # What isn't finite isn't added.
      jnp.where(shown.occupied, shown.fitness, jnp.nan),
      jnp.mean(describe(improved, shown.extras[EPISODES]), axis=1),
      shown.extras)
    example = jax.eval_shape(
      lambda: jax.tree.map(lambda x: x[0], (elites.genotypes, elites.extra)))
    return container.add(container.init(*example), elites)

  return improved, jax.lax.cond(differs, place, lambda: repertoire)
