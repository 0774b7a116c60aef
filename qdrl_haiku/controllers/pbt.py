"""Population-based training: exploit the fittest members, then explore.

Jaderberg et al. (2017), "Population Based Training of Neural Networks",
arXiv:1711.09846, section 3 and appendix A.
"""

import dataclasses

import jax.numpy as jnp

from qdrl_haiku import eager, prng
from qdrl_haiku.config import Settings
from qdrl_haiku.controllers import exploitation, exploration
from qdrl_haiku.controllers.base import Controller, Decision
from qdrl_haiku.controllers.exploitation import ExploitationConfig
from qdrl_haiku.controllers.exploration import ExplorationConfig
from qdrl_haiku.controllers.search_space import SearchSpace
from qdrl_haiku.types import Array, Hyperparams, Key, Tree


@dataclasses.dataclass(frozen=True)
class PBTConfig(ExplorationConfig, ExploitationConfig):
  """Configures `pbt`."""


@dataclasses.dataclass(frozen=True)
class RandomSearchConfig(Settings):
  """Configures random search: hyperparameters are drawn once, and stay so.

  Only members that have diverged are replaced.
  """


def pbt(config: PBTConfig, search_space: Tree) -> Controller:
  """Makes the controller of population-based training.

  Members are ranked by fitness, ties by index. A non-finite fitness ranks last;
  its member is always replaced, beyond the usual number if need be, and never
  a parent. Each of the worst members draws its parent from those of the best
  that are strictly fitter, and survives if none is. Where no fitness is finite,
  all are resampled, with the operator "reinitialise".

  Children of one parent come in pairs, in order of their index: under
  "perturb" the second of a pair steps the opposite way from the first in every
  hyperparameter. A child that would equal its parent or an earlier sibling all
  the same (reflection at a bound, more siblings than directions) is resampled.

  Args:
    config: the settings.
    search_space: a tree shaped as the hyperparameters, its leaves ranges.

  Returns:
    The controller, whose state is (). It refuses a population too small for the
    configured counts.
  """
  space = SearchSpace(search_space)

  def init(key: Key, population_size: int) -> tuple[tuple[()], Hyperparams]:
    hyperparams = space.draw(key, population_size)
    exploitation.exploitation_counts(config, population_size)
    return (), hyperparams

  @eager.compiled_if_eager()
  def update(
    state: tuple[()], key: Key, fitness: Array, hyperparams: Hyperparams
  ) -> tuple[tuple[()], Decision]:
    fitness = jnp.asarray(fitness, float)
    leaves = space.flatten(fitness, hyperparams)
    keys = prng.fold_in_indices(key, fitness.shape[0])
    parents, replaced = exploitation.exploit(
      config, prng.fold_in_each(keys, 0), fitness)
    leaves, operator = exploration.explore_for_replaced(
      config, space, prng.fold_in_each(keys, 1), parents=parents,
      replaced=replaced, lost=~jnp.any(jnp.isfinite(fitness)), leaves=leaves)
    return state, Decision(parents, space.unflatten(leaves), operator)

  return Controller(init, update, exploration.OPERATORS)
