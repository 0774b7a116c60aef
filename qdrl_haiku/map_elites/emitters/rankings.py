"""Which offspring are parents, and in which order.

In this alone the emitters of Fontaine et al. (2020), arXiv:1912.02400, and that
of CMA-MAE differ.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from qdrl_haiku.map_elites.containers.soft_cells import THRESHOLD
from qdrl_haiku.map_elites.emitters.emitter import Evaluated
from qdrl_haiku.map_elites.repertoire import Repertoire
from qdrl_haiku.types import Array, Key, Tree

# Values that differ by less say nothing, as in pyribs.
_FLAT = 1e-12


class Offspring(NamedTuple):
  """Holds what a `Ranking` may look at, of K strategies' L offspring each."""

  fitness: Array  # [K, L].
  descriptors: Array  # [K, L, D].
  before: Array  # What fitness had to exceed; -inf in an empty cell, [K, L].
  is_soft: bool  # Whether that is a threshold that moves slowly.
  directions: Tree  # In which strategies go, [K, D]; () if by none.


Ranking = Callable[[Offspring], tuple[Array, Array, Array]]
"""Says of offspring [K, L] which are parents; which parents come first, bool;
and then by which value, the greatest first. A strategy without parents begins
anew."""


def improvement(offspring: Offspring) -> tuple[Array, Array, Array]:
  """Ranks individuals that fill a cell first, then those that improve one.

  With soft thresholds all are ranked by how far they exceed theirs, or not, and
  the best half are parents.
  """
  fitness, before = offspring.fitness, offspring.before
  if offspring.is_soft:
    return _best_half(fitness - before)
  is_new = before == -jnp.inf
  value = jnp.where(is_new, fitness, fitness - before)
  return jnp.isfinite(fitness) & (fitness > before), is_new, value


def optimizing(offspring: Offspring) -> tuple[Array, Array, Array]:
  """Ranks all by their fitness; the best half are parents."""
  return _best_half(offspring.fitness)


def random_direction(offspring: Offspring) -> tuple[Array, Array, Array]:
  """Ranks individuals that fill or improve a cell by how far they have got."""
  value = jnp.einsum("kld,kd->kl", offspring.descriptors, offspring.directions)
  is_parent, is_new, _ = improvement(offspring._replace(is_soft=False))
  return is_parent, is_new, value


RANKINGS: dict[str, Ranking] = {
  x.__name__: x for x in (improvement, optimizing, random_direction)}
"""By the name in `--cma_ranking`."""


def thresholds(repertoire: Repertoire) -> Array:
  """Returns what fitness has to exceed in each cell, as a new array [C]."""
  return jnp.copy(repertoire.extras.get(THRESHOLD, repertoire.fitness))


def draw_directions(
  ranking: Ranking, key: Key, repertoire: Repertoire, number: int
) -> Tree:
  """Draws directions of descriptors, [number, D], if these are ranked by.

  `ranking` says whether they are, else () is returned; `repertoire` has the
  ranges of descriptors; `number` is that of strategies, and `key` is consumed.
  """
  if ranking is not random_direction:
    return ()
  cells = repertoire.tessellation.cells_for("emitter=cma")
  ranges = jnp.array(cells.upper) - jnp.array(cells.lower)
  return ranges * jax.random.normal(
    jax.random.fold_in(key, 0), (number, ranges.size))


def rank_offspring(
  ranking: Ranking, before: Array, directions: Tree, repertoire: Repertoire,
  evaluated: Evaluated, num_strategies: int,
) -> tuple[Array, Array]:
  """Ranks individuals [K * L], in the order of their K strategies.

  Args:
    ranking: says who are parents, and in which order.
    before: the repertoire's `thresholds` when the individuals were made, [C].
    directions: those of `draw_directions`.
    repertoire: says in which cells they are.
    evaluated: the individuals, leaves [K * L, ...].
    num_strategies: K.

  Returns:
    Ranks int32 [K, L], and how many are parents, int32 [K].
  """
  cells = repertoire.tessellation.cells_for("emitter=cma")
  shape = (num_strategies, -1)
  before = before.at[cells.cell(evaluated.descriptors)].get(
    mode="fill", fill_value=jnp.inf)
  is_parent, is_new, value = ranking(Offspring(
    evaluated.fitness.reshape(shape),
    evaluated.descriptors.reshape(*shape, cells.num_dimensions),
    before.reshape(shape), THRESHOLD in repertoire.extras, directions))
  numbers = jnp.broadcast_to(jnp.arange(is_parent.shape[1]), is_parent.shape)
  *_, order = jax.lax.sort(
    (~is_parent, ~is_new, -jnp.where(is_parent, value, 0), numbers), num_keys=4)
  ranks = jnp.argsort(order, axis=1).astype(jnp.int32)
  return ranks, jnp.sum(is_parent, axis=1, dtype=jnp.int32)


def _best_half(value: Array) -> tuple[Array, Array, Array]:
  """Ranks all by a value; without parents where it doesn't differ."""
  is_known = jnp.isfinite(value)
  worst = jnp.min(jnp.where(is_known, value, jnp.inf), axis=1, keepdims=True)
  known = jnp.where(is_known, value, -jnp.inf)
  differs = jnp.max(known, axis=1, keepdims=True) - worst > _FLAT
  ranks = jnp.argsort(jnp.argsort(-known, axis=1), axis=1)
  is_parent = is_known & (ranks < value.shape[1] // 2) & differs
  return is_parent, jnp.zeros_like(is_parent), value
