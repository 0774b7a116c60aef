"""Population-based training: who takes over from whom, and how it explores.

Jaderberg et al. (2017), "Population Based Training of Neural Networks",
arXiv:1711.09846, section 3 and appendix A.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from qdrl_haiku import eager
from qdrl_haiku.controllers import exploitation, exploration
from qdrl_haiku.controllers.base import SURVIVE, Controller, Decision
from qdrl_haiku.controllers.exploitation import ExploitationConfig
from qdrl_haiku.controllers.exploration import ExplorationConfig
from qdrl_haiku.types import Array, Hyperparams, Key

_OPERATORS = (SURVIVE, "resample", "perturb", "mixed", "reinitialise")


@dataclasses.dataclass(frozen=True)
class PBTConfig(ExplorationConfig, ExploitationConfig):
  """Configures `pbt`."""


def pbt(config: PBTConfig, search_space: Any) -> Controller:
  """Makes the controller of population-based training.

  Ranks are by fitness, ties by index; a non-finite fitness ranks last, is
  always replaced, beyond the usual number if need be, and never a parent.
  A parent is strictly fitter than its child was: who is among the worst draws
  from those of the best that are, and survives where none is.
  Where no fitness is finite, everyone keeps its place and is resampled, with
  the operator "reinitialise".

  Children of one parent come in pairs, in order of their index: under
  "perturb" the second of a pair steps the opposite way from the first in every
  hyperparameter. Each child alone still steps up or down with equal chance,
  but two children explore both directions and can't coincide. A child that
  would equal its parent or an earlier sibling all the same (reflection at a
  bound, more siblings than directions) is resampled.

  Draws depend on the key, the member's index and the hyperparameter's place in
  the tree, so a member's initial hyperparameters do not depend on P.

  Args:
    config: the settings.
    search_space: a tree shaped as the hyperparameters, its leaves ranges.

  Returns:
    The controller, which remembers nothing: its state is (). Both functions
    can be jitted (with a static `population_size`) and raise ValueError for a
    population too small for the configured counts.

  Raises:
    ValueError: if a leaf of the search space is not a range.
  """
  ranges, treedef = exploration.flatten(search_space)

  def init(
    key: Key, population_size: int
  ) -> tuple[tuple[()], Hyperparams]:
    leaves = exploration.draw(ranges, key, population_size)
    exploitation.counts_of(config, population_size)
    return (), jax.tree.unflatten(treedef, leaves)

  @eager.compiled()
  def update(
    state: tuple[()], key: Key, fitness: Array, hyperparams: Hyperparams
  ) -> tuple[tuple[()], Decision]:
    fitness = jnp.asarray(fitness, float)
    exploration.check_shapes(fitness, hyperparams, treedef)
    keys = exploration.member_keys(key, fitness.shape[0])
    parents, replaced = exploitation.exploit(
      config, exploration.fold_in(keys, 0), fitness
    )
    leaves = [jnp.asarray(leaf) for leaf in jax.tree.leaves(hyperparams)]
    children, fresh, is_copy = exploration.children(
      config, ranges, exploration.fold_in(keys, 1), parents, replaced, leaves
    )
    lost = ~jnp.any(jnp.isfinite(fitness))
    children = [
      jnp.where(replaced, jnp.where(lost | is_copy, again, child), leaf)
      for leaf, child, again in zip(leaves, children, fresh, strict=True)
    ]
    operator = jnp.where(
      is_copy,
      _OPERATORS.index("resample"),
      _OPERATORS.index(config.explore),
    )
    operator = jnp.where(lost, _OPERATORS.index("reinitialise"), operator)
    operator = jnp.where(replaced, operator, _OPERATORS.index(SURVIVE))
    return state, Decision(
      parents,
      jax.tree.unflatten(treedef, children),
      operator.astype(jnp.int32),
    )

  return Controller(
    init, update, _OPERATORS, exploitation.first_decision(config)
  )
