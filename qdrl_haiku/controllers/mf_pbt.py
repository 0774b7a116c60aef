"""PBT of several sub-populations that evolve at frequencies of their own.

Doulazmi et al. (2025), "Multiple-Frequencies Population-Based Training",
arXiv:2506.03225, section 4 and algorithm 1.
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from qdrl_haiku import eager
from qdrl_haiku.config import setting
from qdrl_haiku.controllers import exploration
from qdrl_haiku.controllers.base import SURVIVE, Controller, Decision
from qdrl_haiku.controllers.exploration import ExplorationConfig
from qdrl_haiku.types import Array, Hyperparams, Key

_OPERATORS = (
  SURVIVE, "resample", "perturb", "mixed", "reinitialise", "migrated"
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class MFPBTConfig(ExplorationConfig):
  """Configures `mf_pbt`."""

  # The groups are equally large, each a multiple of four, and have the members
  # in order of their index.
  frequencies: tuple[int, ...] = setting(
    (1, 5),
    "Decisions from one round of each group of members to its next, rising "
    "from 1.",
    low=1,
    needs="members",
  )

  def __post_init__(self) -> None:
    super().__post_init__()
    frequencies = self.frequencies
    rises = list(frequencies) == sorted({*frequencies})
    if len(frequencies) < 2 or frequencies[0] != 1 or not rises:
      raise ValueError(
        f"frequencies={frequencies} don't rise from 1, two or more; use the"
        " decisions between the rounds of each group, such as (1, 5)."
      )


class MFPBTState(NamedTuple):
  """Holds the state of `mf_pbt`.

  Attributes:
    num_decisions: int32 [].
  """

  num_decisions: Array


def mf_pbt(config: MFPBTConfig, search_space: Any) -> Controller:
  """Makes the controller of multiple-frequencies population-based training.

  A group has a round at each decision whose number, from 1, is a multiple of
  its frequency. By fitness, ties by index, its members form four quarters. In
  the round each of the last quarter takes over from one of the first, the best
  of them from the best, and explores as with `pbt`. The members of the third
  quarter, the best first, take over from the best of all other groups, each of
  whom migrates to a group once at most: of a slower group with its
  hyperparameters, of a faster one with those of this group's best in their
  place, since those that win soon may lose in the end. Parents are as they were
  before the decision, and fitter than their children: members as fit survive.

  Who isn't finite is replaced at once, round or not, by the one of the first
  quarter that has its place there, or else its group's best, or else the best
  of all, and explores. Where no fitness is finite, everyone keeps its place and
  is resampled, with the operator "reinitialise".

  Args:
    config: the settings.
    search_space: a tree shaped as the hyperparameters, its leaves ranges.

  Returns:
    The controller, whose state is an `MFPBTState`. Both functions can be jitted
    (with a static `population_size`) and raise ValueError for a population that
    can't be divided so.

  Raises:
    ValueError: if a leaf of the search space is not a range.
  """
  ranges, treedef = exploration.flatten(search_space)

  def init(
    key: Key, population_size: int
  ) -> tuple[MFPBTState, Hyperparams]:
    leaves = exploration.draw(ranges, key, population_size)
    _check_size(config, population_size)
    state = MFPBTState(jnp.zeros((), jnp.int32))
    return state, jax.tree.unflatten(treedef, leaves)

  @eager.compiled()
  def update(
    state: MFPBTState, key: Key, fitness: Array, hyperparams: Hyperparams
  ) -> tuple[MFPBTState, Decision]:
    fitness = jnp.asarray(fitness, float)
    exploration.check_shapes(fitness, hyperparams, treedef)
    population_size = fitness.shape[0]
    _check_size(config, population_size)
    number = state.num_decisions + 1
    finite = jnp.isfinite(fitness)
    moves = _moves(config, number, fitness)
    lost = ~jnp.any(finite)

    keys = exploration.member_keys(key, population_size)
    leaves = [jnp.asarray(leaf) for leaf in jax.tree.leaves(hyperparams)]
    children, fresh, is_copy = exploration.children(
      config, ranges, keys, moves.weights, moves.explores, leaves
    )
    new = [
      jnp.where(
        moves.explores,
        jnp.where(lost | is_copy, again, child),
        jnp.where(moves.migrates, leaf[moves.hyperparams], leaf),
      )
      for leaf, child, again in zip(leaves, children, fresh, strict=True)
    ]
    operator = jnp.where(
      is_copy, _OPERATORS.index("resample"), _OPERATORS.index(config.explore)
    )
    operator = jnp.where(lost, _OPERATORS.index("reinitialise"), operator)
    operator = jnp.where(moves.explores, operator, _OPERATORS.index(SURVIVE))
    operator = jnp.where(
      moves.migrates, _OPERATORS.index("migrated"), operator
    )
    indices = jnp.arange(population_size, dtype=jnp.int32)
    takes_over = (moves.explores | moves.migrates) & ~lost
    decision = Decision(
      parents=jnp.where(takes_over, moves.weights, indices),
      hyperparams=jax.tree.unflatten(treedef, new),
      operator=operator.astype(jnp.int32),
    )
    return MFPBTState(number), decision

  return Controller(init, update, _OPERATORS)


def _check_size(config: MFPBTConfig, population_size: int) -> None:
  """Refuses a population that has no such groups."""
  share = 4 * len(config.frequencies)
  if population_size % share:
    raise ValueError(
      f"population_size={population_size} can't be divided into"
      f" {len(config.frequencies)} groups, one per frequency of"
      f" {config.frequencies}, with four equal quarters each; use a multiple of"
      f" {share}."
    )


class _Moves(NamedTuple):
  """Holds which member each one copies weights and hyperparameters from.

  Attributes:
    explores: bool [P], whose hyperparameters then differ from its parent's.
    migrates: bool [P], whose place a migrant takes; never both.
    weights: int32 [P], whose weights it would be.
    hyperparams: int32 [P], whose hyperparameters a migrant would have.
  """

  explores: Array
  migrates: Array
  weights: Array
  hyperparams: Array


def _moves(config: MFPBTConfig, number: Array, fitness: Array) -> _Moves:
  """Returns who takes over what in the decision of a number."""
  frequencies = jnp.array(config.frequencies)
  population_size = fitness.shape[0]
  num_groups = len(config.frequencies)
  size = population_size // num_groups
  share = size // 4
  finite = jnp.isfinite(fitness)
  # Who isn't finite is last.
  worst_first = jnp.where(finite, fitness, -jnp.inf)

  def best_first(values: Array) -> Array:
    return jnp.argsort(-values, stable=True).astype(jnp.int32)

  everyone = best_first(worst_first)

  def of_group(group: Array, worst_first: Array) -> tuple[Array, _Moves]:
    is_round = number % frequencies[group] == 0
    ranked = group * size + best_first(worst_first)
    rank = jnp.arange(size)
    broken = ~finite[ranked]

    parent = ranked[rank % share]
    parent = jnp.where(finite[parent], parent, ranked[0])
    parent = jnp.where(finite[parent], parent, everyone[0])
    fitter = fitness[parent] > fitness[ranked]
    explores = broken | (is_round & (rank >= 3 * share) & fitter)

    # Those of this group come last, and are never reached.
    is_own = everyone // size == group
    others = everyone[jnp.argsort(is_own, stable=True)]

    def take(next_: Array, member: Array) -> tuple[Array, tuple[Array, Array]]:
      migrant = others[next_]
      comes = is_round & finite[migrant] & finite[member]
      comes &= fitness[migrant] > fitness[member]
      return next_ + comes, (comes, migrant)

    third = slice(2 * share, 3 * share)
    _, (comes, migrant) = jax.lax.scan(
      take, jnp.zeros((), jnp.int32), ranked[third]
    )
    migrates = jnp.zeros(size, bool).at[third].set(comes)
    weights = jnp.where(migrates, parent.at[third].set(migrant), parent)
    is_slower = frequencies[weights // size] > frequencies[group]
    return ranked, _Moves(
      explores, migrates, weights, jnp.where(is_slower, weights, ranked[0])
    )

  ranked, moves = jax.vmap(of_group)(
    jnp.arange(num_groups, dtype=jnp.int32),
    worst_first.reshape(num_groups, size),
  )
  # From ranks to members.
  return jax.tree.map(
    lambda x: jnp.zeros_like(x).reshape(-1).at[ranked].set(x), moves
  )
