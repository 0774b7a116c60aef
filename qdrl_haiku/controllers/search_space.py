"""Search spaces: trees shaped as the hyperparameters, with ranges as leaves."""

from typing import Any

import jax
import jax.numpy as jnp

from qdrl_haiku import prng, trees
from qdrl_haiku.ranges import Range
from qdrl_haiku.types import Array, Hyperparams, Key, Tree


class SearchSpace:
  """A search space as L ranges, and hyperparameters as lists of leaves."""

  def __init__(self, tree: Tree) -> None:
    self.ranges: list[Range] = []
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
      if not isinstance(leaf, Range):
        raise ValueError(
          f"search_space{jax.tree_util.keystr(path)}={leaf!r} is not a range;"
          " use Uniform, LogUniform, OneMinusLogUniform, Choice or"
          f" Fixed({leaf!r}).")
      self.ranges.append(leaf)
    self.names = list(trees.tree_leaves_by_name(tree))
    # PyTreeDef has no typed comparison.
    self._treedef: Any = jax.tree.structure(tree)

  def sample(self, keys: Key, first: int = 0) -> list[Array]:
    """Draws hyperparameters for keys [P]; leaf i uses number `first` + i."""
    return [
      jax.vmap(range_.sample)(prng.fold_in_each(keys, first + i))
      for i, range_ in enumerate(self.ranges)]

  def draw(self, key: Key, population_size: int) -> Hyperparams:
    """Draws the first hyperparameters; a member's do not depend on P."""
    if population_size < 1:
      raise ValueError(
        f"population_size={population_size} has no members; use at least 1.")
    return self.unflatten(
      self.sample(prng.fold_in_indices(key, population_size)))

  def flatten(self, fitness: Array, hyperparams: Hyperparams) -> list[Array]:
    """Returns a tree's leaves [P]; refuses a tree unlike the space."""
    leaves = [jnp.asarray(leaf) for leaf in jax.tree.leaves(hyperparams)]
    shapes = {fitness.shape, *(leaf.shape for leaf in leaves)}
    alike = self._treedef == jax.tree.structure(hyperparams)
    if not alike or fitness.ndim != 1 or len(shapes) > 1:
      raise ValueError(
        f"fitness {fitness.shape} and the hyperparameters"
        f" {trees.describe_tree(hyperparams)} don't fit the search space"
        f" {self._treedef}; give one number per member, [P], of each.")
    return leaves

  def unflatten(self, leaves: list[Array]) -> Hyperparams:
    """Returns the tree of hyperparameters that has the given leaves."""
    return jax.tree.unflatten(self._treedef, leaves)
