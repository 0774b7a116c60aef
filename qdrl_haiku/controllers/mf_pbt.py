"""PBT of several sub-populations that evolve at frequencies of their own.

Doulazmi et al. (2025), "Multiple-Frequencies Population-Based Training",
arXiv:2506.03225, section 4 and algorithm 1.
"""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp

from qdrl_haiku import eager, prng
from qdrl_haiku.config import setting
from qdrl_haiku.controllers import exploration
from qdrl_haiku.controllers.base import Controller, Decision
from qdrl_haiku.controllers.exploration import ExplorationConfig
from qdrl_haiku.controllers.search_space import SearchSpace
from qdrl_haiku.types import Array, Hyperparams, Key, Tree

_OPERATORS = (*exploration.OPERATORS, "migrated")


@dataclasses.dataclass(frozen=True)
class MFPBTConfig(ExplorationConfig):
  """Configures `mf_pbt`."""

  # Groups are equally large multiples of four, in order of the index.
  frequencies: tuple[int, ...] = setting(
    (1, 5),
    "Decisions from one round of each group of members to its next, rising "
    "from 1.",
    low=1, needs="members")

  def __post_init__(self) -> None:
    super().__post_init__()
    frequencies = self.frequencies
    rises = list(frequencies) == sorted({*frequencies})
    if len(frequencies) < 2 or frequencies[0] != 1 or not rises:
      raise ValueError(
        f"frequencies={frequencies} don't rise from 1, or are fewer than two; "
        "give each group's decisions between its rounds, such as (1, 5).")


def mf_pbt(config: MFPBTConfig, search_space: Tree) -> Controller:
  """Makes the controller of multiple-frequencies population-based training.

  A group has a round at each decision whose number, from 1, is a multiple of
  its frequency. By fitness, ties by index, its members form four quarters. In
  a round the members of the last quarter copy those of the first, in order of
  rank, and explore as with `pbt`. Members of the third quarter, the best first,
  are replaced by the best members of all other groups, each at most once. Such
  a migrant keeps its hyperparameters if its group is slower; from a faster one
  it takes those of the best member here, since a fast start may lose in the
  end. Parents and migrants are copied as they were before the decision, and are
  strictly fitter than the members that they replace.

  A non-finite member is replaced at once, round or not, and explores. Its
  parent is the member at its place in the first quarter; if that isn't finite,
  its group's best; else the best of all. Where no fitness is finite, all are
  resampled, with the operator "reinitialise".

  Args:
    config: the settings.
    search_space: a tree shaped as the hyperparameters, its leaves ranges.

  Returns:
    The controller, whose state is the number of decisions, int32 []. It refuses
    a population that can't be divided so.
  """
  space = SearchSpace(search_space)

  def init(key: Key, population_size: int) -> tuple[Array, Hyperparams]:
    hyperparams = space.draw(key, population_size)
    _check_size(config, population_size)
    return jnp.zeros((), jnp.int32), hyperparams

  @eager.compiled_if_eager()
  def update(
    state: Array, key: Key, fitness: Array, hyperparams: Hyperparams
  ) -> tuple[Array, Decision]:
    fitness = jnp.asarray(fitness, float)
    leaves = space.flatten(fitness, hyperparams)
    population_size = fitness.shape[0]
    _check_size(config, population_size)
    number = state + 1
    moves = _moves(config, number, fitness)
    lost = ~jnp.any(jnp.isfinite(fitness))
    new, operator = exploration.explore_for_replaced(
      config, space, prng.fold_in_indices(key, population_size),
      parents=moves.weights, replaced=moves.explores, lost=lost, leaves=leaves)
    new = [
      jnp.where(moves.migrates, leaf[moves.hyperparams], x)
      for leaf, x in zip(leaves, new, strict=True)]
    migrated = jnp.int32(_OPERATORS.index("migrated"))
    indices = jnp.arange(population_size, dtype=jnp.int32)
    moved = (moves.explores | moves.migrates) & ~lost
    return number, Decision(
      parents=jnp.where(moved, moves.weights, indices),
      hyperparams=space.unflatten(new),
      operator=jnp.where(moves.migrates, migrated, operator))

  return Controller(init, update, _OPERATORS)


def _check_size(config: MFPBTConfig, population_size: int) -> None:
  """Refuses a population that can't be divided into quarters of groups."""
  share = 4 * len(config.frequencies)
  if population_size % share:
    raise ValueError(
      f"population_size={population_size} can't be divided into"
      f" {len(config.frequencies)} groups, one per frequency of"
      f" {config.frequencies}, with four equal quarters each; use a multiple of"
      f" {share}.")


class _Moves(NamedTuple):
  """Holds what happens to members in a decision."""

  explores: Array  # bool [P], whether a member becomes a child of `weights`.
  migrates: Array  # bool [P], whether a migrant takes the place; never both.
  weights: Array  # int32 [P], the members whose weights are copied.
  hyperparams: Array  # int32 [P], whose hyperparameters a migrant has.


def _moves(config: MFPBTConfig, number: Array, fitness: Array) -> _Moves:
  """Returns the moves of decision `number`."""
  frequencies = jnp.array(config.frequencies)
  population_size = fitness.shape[0]
  num_groups = len(config.frequencies)
  size = population_size // num_groups
  share = size // 4
  finite = jnp.isfinite(fitness)
  values = jnp.where(finite, fitness, -jnp.inf)

  def best_first(values: Array) -> Array:
    """Returns members' indices, that of the greatest value first."""
    return jnp.argsort(-values, stable=True).astype(jnp.int32)

  by_fitness = best_first(values)

  def of_group(group: Array, values: Array) -> tuple[Array, _Moves]:
    """Returns a group's members by rank, and the moves of each rank."""
    is_round = number % frequencies[group] == 0
    ranked = group * size + best_first(values)
    rank = jnp.arange(size)
    broken = ~finite[ranked]

    parent = ranked[rank % share]
    parent = jnp.where(finite[parent], parent, ranked[0])
    parent = jnp.where(finite[parent], parent, by_fitness[0])
    fitter = fitness[parent] > fitness[ranked]
    explores = broken | (is_round & (rank >= 3 * share) & fitter)

    # Migrants in order; own members come last, and are never reached.
    is_own = by_fitness // size == group
    others = by_fitness[jnp.argsort(is_own, stable=True)]

    def take(next_: Array, member: Array) -> tuple[Array, tuple[Array, Array]]:
      """Lets the next migrant take a member's place, if it's fitter."""
      migrant = others[next_]
      comes = is_round & finite[migrant] & finite[member]
      comes &= fitness[migrant] > fitness[member]
      return next_ + comes, (comes, migrant)

    third = slice(2 * share, 3 * share)
    _, (comes, migrant) = jax.lax.scan(
      take, jnp.zeros((), jnp.int32), ranked[third])
    migrates = jnp.zeros(size, bool).at[third].set(comes)
    weights = jnp.where(migrates, parent.at[third].set(migrant), parent)
    is_slower = frequencies[weights // size] > frequencies[group]
    return ranked, _Moves(
      explores, migrates, weights, jnp.where(is_slower, weights, ranked[0]))

  ranked, moves = jax.vmap(of_group)(
    jnp.arange(num_groups, dtype=jnp.int32), values.reshape(num_groups, size))
  # From ranks to members.
  return jax.tree.map(
    lambda x: jnp.zeros_like(x).reshape(-1).at[ranked].set(x), moves)
